"""A request at a token backend."""

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from rolltap.backend_handle import BackendHandle
from rolltap.bases.backends import TokenBackend
from rolltap.errors import UpstreamError
from rolltap.rendering import Renderer
from rolltap.turns.base import Turn, TurnRecord
from rolltap.turns.choices import TokenChoice
from rolltap.turns.collecting import as_message
from rolltap.turns.prompts import TokenPrompt
from rolltap.turns.readers import Readers
from rolltap.types.chat import ChatRequest
from rolltap.types.generation import ChatDelta, Choice, TokenDelta, TokenRequest, Usage


class TokenTurn(Turn):
    """A request at a token backend."""

    def __init__(
        self,
        request: ChatRequest,
        handle: BackendHandle,
        *,
        backend: TokenBackend,
        prompt: TokenPrompt,
        renderer: Renderer,
        readers: Readers,
        session: str,
        request_id: str,
    ) -> None:
        super().__init__(request, handle)
        self._backend = backend
        self._prompt = prompt
        self._token_request = TokenRequest(
            prompt_ids=tuple(prompt.ids),
            sampling=request.sampling,
            stream=request.stream or (bool(request.sampling.stop) and not backend.stops_at_strings),
            session=session,
            request_id=request_id,
        )
        self._cached_tokens: int | None = None
        self._echoed = False
        self._choices = [
            TokenChoice(index, renderer, request, reader, show_special=readers.show_special_tokens)
            for index, reader in enumerate(readers.choices)
        ]

    async def deltas(self) -> AsyncGenerator[ChatDelta, None]:
        """Send the ids; yield the text, the thinking and the calls that come back."""
        async with aclosing(self._checked(self._backend.generate(self._token_request), TokenDelta)) as stream:
            async for token_delta in stream:
                for delta in self._feed(token_delta) or [ChatDelta(index=token_delta.index)]:
                    self._collector.add(delta)
                    yield delta
                if all(choice.finished for choice in self._choices) and any(c.was_cut for c in self._choices):
                    break  # a stop string that the engine does not know of; else it ends by itself
        for delta in self._ended():
            self._collector.add(delta)
            yield delta
        if not self._echoed:
            self.handle.warn_once(
                "does not echo the ids of its prompts: that it saw what it was sent is not proved"
            )

    def _ended(self) -> list[ChatDelta]:
        """The rest of the choices that a backend ended without saying why: it had no more to say."""
        deltas: list[ChatDelta] = []
        for choice in self._choices:
            if choice.finished:
                continue
            if not choice.begun or self._backend.ends_explicitly:
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
            self.sampling |= delta.sampling
        if delta.cached_tokens is not None:
            self._cached_tokens = delta.cached_tokens
        return self._choices[delta.index].feed(delta)

    def final_deltas(self) -> list[ChatDelta]:
        """See `Turn.final_deltas`."""
        ends = [choice.end() for choice in self._choices]
        for end in ends:
            self._collector.add(end)
        return ends

    def usage(self) -> Usage:
        """See `Turn.usage`."""
        return Usage(
            prompt_tokens=len(self._prompt.ids),
            completion_tokens=sum(choice.num_tokens for choice in self._choices),
            cached_tokens=self._cached_tokens,
        )

    def recorded(self, *, aborted: bool = False, error: str | None = None) -> TurnRecord | None:
        """The prompt's new ids, and each choice's ids and logprobs."""
        said = {choice.index: choice for choice in self.answer().choices}
        raw = self.request.prompt is not None
        outputs = []
        for choice in self._choices:
            if aborted and not choice.num_tokens:
                continue
            read = said.get(choice.index, Choice(index=choice.index))
            outputs.append(
                choice.output(
                    str(uuid.uuid4()),
                    text=read.text if raw else None,
                    message=None if raw else as_message(read),
                    aborted=aborted,
                    error=error,
                )
            )
        return TurnRecord(self._prompt.placement, self._prompt.new, outputs) if outputs else None

    @property
    def drifted(self) -> bool:
        """Whether the engine saw another prompt than it was sent."""
        return any(choice.drifted for choice in self._choices)
