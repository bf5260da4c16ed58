"""The dialect "openai.completions": a raw prompt, as text or token ids, continued."""

from typing import Any

import orjson
from aiohttp import web

import rolltap
from rolltap import (
    ChatDelta,
    ChatRequest,
    Choice,
    Completion,
    ErrorInfo,
    ErrorReply,
    MessageConverter,
    StreamEncoder,
    TokenLogprob,
    hookimpl,
)
from rolltap_plugins.openai_dialects.replies import DONE, error_reply, finish_reason, stream_error, usage_body
from rolltap_plugins.wire import read_body, refused, unnamed
from rolltap_plugins.wire.sampling import (
    CLIENT_FIELDS,
    UPSTREAM_FIELDS,
    NotNegative,
    SamplingFields,
    StreamOptions,
    sampling,
    told,
)

DIALECT = "openai.completions"

MAX_TOKENS = 16
"""What a request without `max_tokens` gets, by OpenAI's reference."""


class CompletionsBody(SamplingFields, kw_only=True):
    """The request's body."""

    prompt: str | list[Any]
    model: str | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: NotNegative | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    suffix: str | None = None


class CompletionsConverter(MessageConverter):
    """Completions in and out."""

    dialect = DIALECT
    id_prefix = "cmpl-"

    def decode(self, body: dict[str, Any]) -> ChatRequest:
        """See `MessageConverter.decode`. A parameter without a name here goes to the backend in `extra`."""
        raw = read_body(body, CompletionsBody)
        prompt = _prompt(raw.prompt)
        if raw.suffix:
            raise refused("suffix", "is not supported: a prompt can only be continued.")
        if raw.best_of not in {None, raw.n or 1}:
            raise refused("best_of", "must equal n: every choice that is generated is returned and recorded.")
        if raw.echo and not isinstance(prompt, str):
            raise refused("echo", "needs a text prompt; token ids are the caller's own already.")
        if raw.echo and raw.logprobs is not None:
            raise refused("logprobs", "can't be given together with echo: there are none for a prompt.")
        return ChatRequest(
            model=raw.model or "",
            prompt=prompt if isinstance(prompt, str) else tuple(prompt),
            sampling=sampling(
                raw,
                max_tokens=raw.max_tokens or MAX_TOKENS,
                top_logprobs=raw.logprobs,
                extra=unnamed(body, CompletionsBody.__struct_fields__, CLIENT_FIELDS, UPSTREAM_FIELDS),
            ),
            stream=bool(raw.stream),
            include_usage=bool(raw.stream_options and raw.stream_options.include_usage),
            echo=bool(raw.echo),
            client_fields=told(body, CLIENT_FIELDS),
            upstream=told(body, UPSTREAM_FIELDS),
        )

    def encode(self, request: ChatRequest, completion: Completion) -> dict[str, Any]:
        """See `MessageConverter.encode`."""
        prefix = _echoed(request)
        choices = []
        for choice in completion.choices:
            logprobs = None if choice.logprobs is None else _logprobs(choice.logprobs, 0)
            choices.append(
                {
                    "index": choice.index,
                    "text": prefix + choice.text,
                    "logprobs": logprobs,
                    "finish_reason": _finish_reason(choice),
                }
            )
        return {
            "id": completion.id,
            "object": "text_completion",
            "created": completion.created,
            "model": completion.model,
            "choices": choices,
            "usage": usage_body(completion.usage),
        }

    def stream(self, request: ChatRequest, completion: Completion) -> StreamEncoder:
        """See `MessageConverter.stream`."""
        return CompletionsStream(request, completion)

    def error(self, info: ErrorInfo, request_id: str) -> ErrorReply:
        """See `MessageConverter.error`."""
        return error_reply(info, request_id)


class CompletionsStream(StreamEncoder):
    """A streamed reply. Finish chunks wait for `finish`, as those of Chat Completions do."""

    def __init__(self, request: ChatRequest, completion: Completion) -> None:
        base = {
            "id": completion.id,
            "object": "text_completion",
            "created": completion.created,
            "model": completion.model,
        }
        self._head = b"data: " + orjson.dumps(base)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if request.include_usage else b"]}\n\n"
        self._include_usage = request.include_usage
        self._echo = _echoed(request)
        self._echoed: set[int] = set()
        self._offsets: dict[int, int] = {}

    def start(self) -> bytes:
        """The echoed prompt, where the client wants it."""
        return self._echo_once(0)

    def delta(self, delta: ChatDelta) -> bytes:
        """One chunk, or none where the delta has no text and no logprobs."""
        echo = self._echo_once(delta.index)
        if not delta.text and not delta.logprobs:
            return echo
        logprobs = None
        if delta.logprobs:
            start = self._offsets.get(delta.index, 0)
            logprobs = _logprobs(delta.logprobs, start)
            self._offsets[delta.index] = start + sum(len(token.token) for token in delta.logprobs)
        return echo + self._chunk(delta.index, delta.text, logprobs=logprobs)

    def finish(self, completion: Completion) -> bytes:
        """Each choice's finish chunk, the usage where it was asked for, and the end."""
        frames = []
        for choice in completion.choices:
            frames.append(self._echo_once(choice.index))
            frames.append(self._chunk(choice.index, "", reason=_finish_reason(choice)))
        if self._include_usage:
            usage = orjson.dumps(usage_body(completion.usage))
            frames.append(self._head + b'],"usage":' + usage + b"}\n\n")
        return b"".join([*frames, DONE])

    def error(self, info: ErrorInfo) -> bytes:
        """A chunk with the error, and the end."""
        return stream_error(info)

    def _echo_once(self, index: int) -> bytes:
        if not self._echo or index in self._echoed:
            return b""
        self._echoed.add(index)
        return self._chunk(index, self._echo)

    def _chunk(
        self, index: int, text: str, *, reason: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return self._head + orjson.dumps(choice) + self._tail


def _prompt(value: str | list[Any]) -> str | list[int]:
    """One prompt: text, ids, or a list that holds one of these."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise refused("prompt", f"holds {len(value)} prompts; send one request for each.")
        value = value[0]
    if not value:
        raise refused("prompt", "is empty.")
    if isinstance(value, list):
        for at, token in enumerate(value):
            # bool is a subclass of int; engines count ids in 32 bits.
            if type(token) is not int or not 0 <= token < 2**31:
                raise refused(f"prompt[{at}]", "is not a token id.")
    return value


def _echoed(request: ChatRequest) -> str:
    return request.prompt if request.echo and isinstance(request.prompt, str) else ""


def _finish_reason(choice: Choice) -> str:
    """A raw completion knows no tool calls: text that looks like one is text."""
    return "stop" if choice.finish_reason == "tool_calls" else finish_reason(choice.finish_reason)


def _logprobs(tokens: list[TokenLogprob], start: int) -> dict[str, Any]:
    """The four parallel lists; `start` is where the first token begins in the choice's text, in characters."""
    offsets = []
    for token in tokens:
        offsets.append(start)
        start += len(token.token)
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{other.token: other.logprob for other in token.top} for token in tokens],
        "text_offset": offsets,
    }


@hookimpl
def message_converter(dialect: str) -> MessageConverter | None:
    """The converter for "openai.completions"."""
    return CompletionsConverter() if dialect == DIALECT else None


@hookimpl
def register_routes(app: web.Application) -> None:
    """POST /v1/completions."""
    rolltap.add_dialect(app, DIALECT, "/v1/completions")


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"message_converter": [DIALECT]}
