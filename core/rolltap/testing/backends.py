"""Backends that answer from a script: for what a real model can't be made to say."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

from rolltap.bases.backends import TokenBackend
from rolltap.in_process import ChatBackend
from rolltap.types.chat import ChatRequest, Sampling
from rolltap.types.generation import ChatDelta, FinishReason, TokenDelta, TokenRequest


def scripted_logprobs(ids: list[int]) -> list[float]:
    """The logprobs that a scripted backend gives: negative, and telling of the ids."""
    return [-0.01 * (1 + token % 97) for token in ids]


class Reply(Struct, kw_only=True):
    """What a scripted token backend answers with: one choice."""

    text: str = ""
    """Encoded by the backend's tokenizer, followed by its end-of-turn id unless `finish_reason` is "length"."""
    ids: list[int] | None = None
    """The exact ids, in place of `text`."""
    logprobs: list[float] | Callable[[list[int]], list[float]] | None = scripted_logprobs
    """None: as an engine that gives none."""
    finish_reason: FinishReason = "stop"
    stop_reason: int | str | None = None
    chunk: int = 1
    """How many tokens come in one delta."""
    delay_s: float = 0.0
    """How long each delta takes."""
    echo: list[int] | bool = True
    """The prompt ids that the engine says it saw: those it was sent, none, or these."""
    error: Exception | None = None
    """Raised after the tokens, in place of the end."""
    extras: dict[str, Any] = {}
    """Further fields of the last `TokenDelta`, such as `weight_versions`."""


class TokenCall(Struct):
    """A call that a scripted token backend got."""

    prompt_ids: list[int]
    sampling: Sampling
    output_ids: list[list[int]]
    """What each choice was answered with, as far as it came."""
    output_logprobs: list[list[float]]
    """The logprobs that came with them."""
    request: TokenRequest | None = None
    """The whole request, where the call came from the server."""
    closed: bool = False
    """Whether the caller closed the stream before its end."""


Script = Iterable[str | Reply | Sequence[str | Reply]] | Callable[[list[int], Sampling], str | Reply]


class ScriptedTokenBackend(TokenBackend):
    """Answers each call with the next reply of a script, and keeps what it was sent in `calls`.

    `script` is a list with one entry a call (a list there: one reply a choice), or a function of the prompt's ids
    and the sampling. `tokenizer` is a folder, such as `tiny_tokenizer` makes.
    """

    parameters = None

    def __init__(self, tokenizer: str, script: Script = ()) -> None:
        self.tokenizer = tokenizer
        self.calls: list[TokenCall] = []
        self._script = script if callable(script) else iter(script)

    async def start(self) -> None:
        """Load the tokenizer."""
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(self.tokenizer)

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenDelta]:
        """The next reply of the script, token by token."""
        prompt_ids = list(request.prompt_ids)
        replies = self._next(prompt_ids, request.sampling)
        call = TokenCall(prompt_ids, request.sampling, [[] for _ in replies], [[] for _ in replies], request)
        self.calls.append(call)
        finished = 0
        try:
            for index, reply in enumerate(replies):
                async for delta in self._play(reply, prompt_ids, index):
                    call.output_ids[index] += delta.token_ids
                    call.output_logprobs[index] += delta.logprobs or ()
                    finished += delta.finish_reason is not None
                    yield delta
        finally:
            call.closed = finished < len(replies)

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _next(self, prompt_ids: list[int], sampling: Sampling) -> list[Reply]:
        if callable(self._script):
            entry: Any = [self._script(prompt_ids, sampling) for _ in range(sampling.n)]
        else:
            try:
                entry = next(self._script)
            except StopIteration:
                raise AssertionError(
                    f"the script has ended: call {len(self.calls) + 1} was not expected"
                ) from None
        replies = [entry] * sampling.n if isinstance(entry, str | Reply) else list(entry)
        return [Reply(text=reply) if isinstance(reply, str) else reply for reply in replies]

    async def _play(self, reply: Reply, prompt_ids: list[int], index: int) -> AsyncIterator[TokenDelta]:
        ids = reply.ids
        if ids is None:
            end = [] if reply.finish_reason == "length" else [self._tokenizer.eos_token_id]
            ids = self.encode(reply.text) + end
        logprobs = reply.logprobs(ids) if callable(reply.logprobs) else reply.logprobs
        echo = None if reply.echo is False else list(prompt_ids) if reply.echo is True else reply.echo
        for start in range(0, len(ids), reply.chunk) or [0]:
            await asyncio.sleep(reply.delay_s)
            end_at = start + reply.chunk
            last = end_at >= len(ids) and reply.error is None
            yield TokenDelta(
                index=index,
                token_ids=ids[start:end_at],
                logprobs=logprobs[start:end_at] if logprobs is not None else None,
                prompt_token_ids=echo if start == 0 else None,
                finish_reason=reply.finish_reason if last else None,
                stop_reason=reply.stop_reason if last else None,
                logprobs_mode="raw_logprobs",
                **(reply.extras if last else {}),
            )
        if reply.error is not None:
            raise reply.error


class ScriptedChatBackend(ChatBackend):
    """Answers each call with the next entry of a script, and keeps the requests in `requests`.

    An entry is a text, or the list of deltas (and exceptions, which are raised) to answer with.
    """

    parameters = None

    def __init__(self, script: Iterable[str | Sequence[ChatDelta | Exception]] = ()) -> None:
        self.requests: list[ChatRequest] = []
        self._script = iter(script)

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        """The next entry of the script."""
        self.requests.append(request)
        entry = next(self._script)
        if isinstance(entry, str):
            entry = [ChatDelta(text=entry), ChatDelta(finish_reason="stop")]
        for delta in entry:
            if isinstance(delta, Exception):
                raise delta
            yield delta
