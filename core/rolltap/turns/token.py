"""A request at a token backend."""

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from rolltap.bases.backends import BackendHandle, TokenBackend
from rolltap.errors import UpstreamError
from rolltap.record.forest import Forest
from rolltap.rendering import Renderer
from rolltap.turns.base import Turn, named
from rolltap.turns.choices import TokenChoice
from rolltap.turns.prompts import TokenPrompt
from rolltap.turns.readers import Readers
from rolltap.types.chat import ChatRequest
from rolltap.types.generation import ChatDelta, Choice, Completion, TokenDelta, Usage
from rolltap.types.record import NodesRecorded


class TokenTurn(Turn):
    """A request at a token backend."""

    def __init__(
        self,
        request: ChatRequest,
        handle: BackendHandle,
        completion: Completion,
        *,
        prompt: TokenPrompt,
        renderer: Renderer,
        readers: Readers,
    ) -> None:
        super().__init__(request, handle, completion)
        self._prompt = prompt
        self._cached_tokens: int | None = None
        self._echoed = False
        self._choices = [
            TokenChoice(index, renderer, request, reader, show_special=readers.show_special_tokens)
            for index, reader in enumerate(readers.choices)
        ]

    async def deltas(self) -> AsyncGenerator[ChatDelta, None]:
        """Send the ids; yield the text, the thinking and the calls that come back."""
        backend = self.handle.backend
        assert isinstance(backend, TokenBackend)  # noqa: S101 - the pipeline chose the turn by it
        async with aclosing(
            self._each(backend.generate(self._prompt.ids, self.request.sampling), TokenDelta)
        ) as stream:
            async for token_delta in stream:
                for delta in self._feed(token_delta) or [ChatDelta(index=token_delta.index)]:
                    self._collector.add(delta)
                    yield delta
                if all(choice.finished for choice in self._choices) and any(c.was_cut for c in self._choices):
                    break  # a stop string that the engine does not know of; else it ends by itself
        for delta in self._ended():
            self._collector.add(delta)
            yield delta
        self._collect()

    def _ended(self) -> list[ChatDelta]:
        """The rest of the choices that a backend ended without saying why: it had no more to say."""
        deltas: list[ChatDelta] = []
        for choice in self._choices:
            if choice.finished:
                continue
            if not choice.begun or self.handle.backend.ends_explicitly:
                raise UpstreamError(f"the engine's answer ended before choice {choice.index} was finished")
            deltas += choice.feed(TokenDelta(index=choice.index, finish_reason="stop"))
        return deltas

    def _feed(self, delta: TokenDelta) -> list[ChatDelta]:
        if not 0 <= delta.index < len(self._choices):
            raise UpstreamError(f"the engine answered with choice {delta.index} of {len(self._choices)}")
        if delta.prompt_token_ids is not None:
            self._echoed = True
            for choice in self._choices:
                choice.check_echo(self._prompt.ids, delta.prompt_token_ids)
        if delta.sampling is not None:
            self._sampling |= delta.sampling
        if delta.cached_tokens is not None:
            self._cached_tokens = delta.cached_tokens
        return self._choices[delta.index].feed(delta)

    def _collect(self) -> None:
        if not self._echoed:
            self.handle.warn_once(
                "does not echo the ids of its prompts: that it saw what it was sent is not proved"
            )
        self._ends = [choice.end() for choice in self._choices]
        for end in self._ends:
            self._collector.add(end)
        self._collector.collect().usage = Usage(
            prompt_tokens=len(self._prompt.ids),
            completion_tokens=sum(choice.num_tokens for choice in self._choices),
            cached_tokens=self._cached_tokens,
        )

    def entry(self, forest: Forest, *, aborted: bool = False) -> NodesRecorded | None:
        """The prompt's new ids, and each choice's ids and logprobs."""
        texts = {choice.index: choice for choice in self._collector.collect().choices}
        conversation, outputs = self._prompt.conversation, []
        for choice in self._choices:
            if aborted and not choice.num_tokens:
                continue
            said = texts.get(choice.index, Choice(index=choice.index))
            raw = self._prompt.new.text is not None
            output = choice.output(str(uuid.uuid4()), text=said.text if raw else None)
            if aborted:
                output.delivery = "aborted"
                output.finish_reason = output.finish_reason or "abort"
            outputs.append(named(output, said, conversation) if output.ids else output)
        return self._recorded(conversation, self._prompt.new, outputs, forest) if outputs else None

    @property
    def drifted(self) -> bool:
        """Whether the engine saw another prompt than it was sent."""
        return any(choice.drifted for choice in self._choices)
