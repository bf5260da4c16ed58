"""A request at a token backend."""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from rolltap.backend_handle import BackendHandle
from rolltap.bases.backends import TokenBackend
from rolltap.errors import ErrorInfo, RequestError, UpstreamError
from rolltap.rendering import Renderer
from rolltap.turns.base import Turn, TurnRecord
from rolltap.turns.begun import whole_answer
from rolltap.turns.choices import TokenChoice, prompt_difference, token_logprob
from rolltap.turns.collecting import as_message
from rolltap.turns.continuing import Continuation, EngineAborted, RestartCall, cannot_go_on, merged
from rolltap.turns.prompts import TokenPrompt
from rolltap.turns.readers import Readers
from rolltap.types.chat import ChatRequest
from rolltap.types.generation import ChatDelta, Choice, PromptToken, TokenDelta, TokenRequest, Usage
from rolltap.weights import wait_serving


class TokenTurn(Turn):
    """A request at a token backend.

    `deltas` may be read again after an engine was lost: it then asks for what the unfinished choices still lack.
    """

    def __init__(
        self,
        request: ChatRequest,
        handle: BackendHandle,
        *,
        prompt: TokenPrompt,
        renderer: Renderer,
        readers: Readers,
        continuation: Continuation,
        session: str,
        request_id: str,
    ) -> None:
        super().__init__(request, handle)
        self._prompt = prompt
        self.notes += prompt.notes
        self._continuation = continuation
        self._token_request = TokenRequest(
            prompt_ids=tuple(prompt.ids), sampling=request.sampling, session=session, request_id=request_id
        )
        self._renderer = renderer
        self._cached_tokens: int | None = None
        self._prompt_logprobs: list[dict[int, float] | None] | None = None
        self._told_prompt: set[int] = set()
        """The choices whose client has been told the prompt's ids."""
        self._echoed = False
        self._closing: list[ChatDelta] = []
        """The last of choices that were given up with nothing left to generate."""
        self._pieces_begun = 0
        self._visible = False
        """Whether something that a client sees has been given."""
        self._choices = [
            TokenChoice(
                index,
                renderer,
                request,
                reader,
                show_special=readers.show_special_tokens,
                goes_on_from=prompt.ids[-1] if prompt.begun is not None else None,
            )
            for index, reader in enumerate(readers.choices)
        ]

    async def deltas(self) -> AsyncGenerator[ChatDelta, None]:
        """Send the ids; yield the text, the thinking and the calls that come back."""
        while True:
            async with aclosing(self._pieces()) as pieces:
                async for delta in pieces:
                    self._collector.add(delta)
                    self._visible = self._visible or bool(delta.text or delta.reasoning or delta.tool_calls)
                    if self.request.continuous_usage:
                        delta.usage = self.counted()
                    yield delta
            if not any(choice.aborted for choice in self._choices):
                break
            await self._wait_to_go_on()
        for delta in self._ended():
            self._collector.add(delta)
            yield delta
        if not self._echoed:
            self.handle.warn_once(
                "does not echo the ids of its prompts: that it saw what it was sent is not proved"
            )

    async def _pieces(self) -> AsyncGenerator[ChatDelta, None]:
        """Ask the engine once for everything that is still to be generated."""
        backend = self.handle.backend
        assert isinstance(backend, TokenBackend)  # noqa: S101 - the pipeline chose the turn by it
        self._pieces_begun += 1
        before = self._continuation.updates.version(self.handle.model)
        requests = self._requests(backend, before)
        closing, self._closing = self._closing, []
        for delta in closing:
            yield delta
        if not requests:
            return
        asked = [index for indices, _ in requests for index in indices]
        streams = [self._tokens(backend, indices, request) for indices, request in requests]
        try:
            async with aclosing(merged(streams)) as stream:
                async for token_delta in stream:
                    for delta in self._feed(token_delta) or [ChatDelta(index=token_delta.index)]:
                        yield delta
                    if all(choice.finished for choice in self._choices) and any(
                        choice.was_cut for choice in self._choices
                    ):
                        break  # a stop string that the engine does not know of; else it ends by itself
        finally:
            after = self._continuation.updates.version(self.handle.model)
            for index in asked:
                self._choices[index].end_piece(before, after)

    def _requests(
        self, backend: TokenBackend, version: int | str | None
    ) -> list[tuple[list[int], TokenRequest]]:
        """What the engine is asked, and for which choices: all at once, or each that has begun by itself."""
        sampling = self.request.sampling
        base = msgspec.structs.replace(
            self._token_request,
            stream=self.request.stream or (bool(sampling.stop) and not backend.stops_at_strings),
            cache_salt=str(version) if self._continuation.salted and version is not None else "",
        )
        if not any(choice.num_tokens for choice in self._choices):
            return [([choice.index for choice in self._choices], base)]
        requests = []
        for choice in self._choices:
            if not choice.finished:
                done = choice.num_tokens
                left = None if sampling.max_tokens is None else sampling.max_tokens - done
                least = None if sampling.min_tokens is None else max(0, sampling.min_tokens - done)
                if left == 0:
                    self._closing += choice.feed(TokenDelta(index=choice.index, finish_reason="length"))
                    continue
                rest = msgspec.structs.replace(sampling, n=1, max_tokens=left, min_tokens=least)
                ids = (*self._prompt.ids, *choice.ids)
                request = msgspec.structs.replace(base, prompt_ids=ids, sampling=rest)
                requests.append(([choice.index], request))
        return requests

    async def _tokens(
        self, backend: TokenBackend, indices: list[int], request: TokenRequest
    ) -> AsyncGenerator[TokenDelta, None]:
        """The engine's deltas, under the numbers that their choices have here; its echo is compared."""
        async with aclosing(self._checked(backend.generate(request), TokenDelta)) as stream:
            async for delta in stream:
                if not 0 <= delta.index < len(indices):
                    raise UpstreamError(f"the engine answered with choice {delta.index} of {len(indices)}")
                if delta.prompt_token_ids is not None or delta.num_prompt_tokens is not None:
                    self._echoed = self._echoed or delta.prompt_token_ids is not None
                    difference = prompt_difference(request.prompt_ids, delta)
                    for index in indices:
                        self._choices[index].prove_prompt(delta, difference)
                if delta.index == indices[delta.index]:
                    yield delta
                else:
                    yield msgspec.structs.replace(delta, index=indices[delta.index])

    async def _wait_to_go_on(self) -> None:
        """Wait until the engine serves again. Raises where the call is not gone on from."""
        on_abort, limit_s = self._continuation.on_abort, self._continuation.pause_limit_s
        why_not = cannot_go_on(self.request.sampling)
        restarts = on_abort == "restart" or (on_abort == "continue" and why_not)
        if on_abort == "end" or (restarts and self._visible and self.request.stream):
            reason = why_not or f'the config says on_abort = "{on_abort}"'
            raise EngineAborted(f"the engine gave the generation up, and it can't be gone on from: {reason}")
        until = time.monotonic() + limit_s
        async with self._continuation.hold():
            await self._continuation.updates.wait_open(limit_s)
            await wait_serving(self.handle, until, limit_s)
        if restarts:
            raise RestartCall
        for choice in self._choices:
            if choice.aborted:
                choice.go_on()

    def move_to(self, handle: BackendHandle) -> bool:
        """Go on at another engine after this one was lost; whether that can be done."""
        if cannot_go_on(self.request.sampling):
            return False
        self.handle = handle
        for choice in self._choices:
            if choice.num_tokens and not choice.finished:
                choice.go_on()
        return True

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
        if delta.sampling is not None and self._pieces_begun == 1:
            self.sampling |= delta.sampling
        if delta.cached_tokens is not None and self._cached_tokens is None:
            self._cached_tokens = delta.cached_tokens
        if delta.prompt_logprobs is not None and self._pieces_begun == 1:
            self._prompt_logprobs = delta.prompt_logprobs
        deltas = self._choices[delta.index].feed(delta)
        if self.request.return_token_ids and delta.index not in self._told_prompt:
            self._told_prompt.add(delta.index)
            deltas = deltas or [ChatDelta(index=delta.index)]
            deltas[0].prompt_token_ids = self._prompt.ids
        return deltas

    def final_deltas(self) -> list[ChatDelta]:
        """See `Turn.final_deltas`."""
        ends = [choice.end() for choice in self._choices]
        scored = self._scored_prompt()
        for end in ends:
            end.prompt_logprobs = scored
            self._collector.add(end)
        return ends

    def _scored_prompt(self) -> list[PromptToken] | None:
        """The prompt's tokens with their logprobs, where the client asked and the engine gave them."""
        given, ids = self._prompt_logprobs, self._prompt.ids
        if given is None:
            return None
        if len(given) != len(ids):
            raise UpstreamError(f"the engine gave {len(given)} logprobs for a prompt of {len(ids)} ids")
        scored = []
        for token, found in zip(ids, given, strict=True):
            likeliest = sorted((found or {}).items(), key=lambda item: -item[1])
            scored.append(
                PromptToken(
                    token=self._renderer.decode([token]),
                    id=token,
                    logprob=(found or {}).get(token),
                    top=[token_logprob(self._renderer, other, value) for other, value in likeliest],
                )
            )
        return scored

    def counted(self) -> Usage:
        """See `Turn.counted`."""
        return Usage(
            prompt_tokens=len(self._prompt.ids),
            completion_tokens=sum(choice.num_tokens for choice in self._choices),
            cached_tokens=self._cached_tokens,
        )

    def usage(self) -> Usage:
        """See `Turn.usage`. Thinking counts as what its text is in tokens."""
        counted = self.counted()
        thoughts = [choice.reasoning for choice in self.answer().choices if choice.reasoning]
        if thoughts:
            found = sum(len(self._renderer.encode(thought)) for thought in thoughts)
            counted.reasoning_tokens = min(found, counted.completion_tokens)
        return counted

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
                    message=None if raw else whole_answer(self._prompt.begun, as_message(read)),
                    aborted=aborted,
                    error=error,
                )
            )
        prompt = self._prompt
        return TurnRecord(prompt.placement, prompt.new, outputs, prompt.messages) if outputs else None

    @property
    def drifted(self) -> bool:
        """Whether the engine saw another prompt than it was sent."""
        return any(choice.drifted for choice in self._choices)


def aborted_error(reason: EngineAborted) -> RequestError:
    """What a client is told of a call that its engine gave up."""
    return RequestError(
        ErrorInfo(
            status=503, message=str(reason), code="generation_aborted", retry_after=1, should_retry=True
        )
    )
