"""The dialect "openai.completions": raw prompts, as text or token ids, continued."""

from typing import Any

from aiohttp import web

import rolltap
from rolltap import ChatRequest, Completion, ErrorInfo, ErrorReply, MessageConverter, StreamEncoder, hookimpl
from rolltap_plugins.openai_dialects.completions_reply import (
    CompletionsState,
    CompletionsStream,
    text_completion,
)
from rolltap_plugins.openai_dialects.replies import error_reply
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

MOST_PROMPTS = 1024
"""Prompts in one request; each is a call of its own."""


class CompletionsBody(SamplingFields, kw_only=True):
    """The request's body."""

    prompt: str | list[Any]
    model: str | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: NotNegative | None = None
    prompt_logprobs: NotNegative | None = None
    return_token_ids: bool | None = None
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
        prompts = _prompts(raw.prompt)
        scored_echo = bool(raw.echo) and raw.logprobs is not None
        _check(raw, prompts, scored_echo=scored_echo)
        extra = unnamed(body, CompletionsBody.__struct_fields__, CLIENT_FIELDS, UPSTREAM_FIELDS)
        scored = raw.prompt_logprobs
        if scored_echo:
            scored = max(raw.logprobs or 0, scored or 0)
        if scored is not None:
            extra["prompt_logprobs"] = scored
        options = raw.stream_options or StreamOptions()
        return ChatRequest(
            model=raw.model or "",
            prompt=prompts[0],
            more_prompts=tuple(prompts[1:]),
            sampling=sampling(
                raw, max_tokens=raw.max_tokens or MAX_TOKENS, top_logprobs=raw.logprobs, extra=extra
            ),
            stream=bool(raw.stream),
            include_usage=bool(options.include_usage),
            continuous_usage=bool(raw.stream and options.continuous_usage_stats),
            return_token_ids=bool(raw.return_token_ids),
            echo=bool(raw.echo),
            client_fields=told(body, CLIENT_FIELDS),
            upstream=told(body, UPSTREAM_FIELDS),
            state=CompletionsState(scored_echo, raw.prompt_logprobs is not None),
        )

    def encode(self, request: ChatRequest, completion: Completion) -> dict[str, Any]:
        """See `MessageConverter.encode`."""
        return text_completion(request, completion)

    def stream(self, request: ChatRequest, completion: Completion) -> StreamEncoder:
        """See `MessageConverter.stream`."""
        return CompletionsStream(request, completion)

    def error(self, info: ErrorInfo, request_id: str) -> ErrorReply:
        """See `MessageConverter.error`."""
        return error_reply(info, request_id)


def _check(raw: CompletionsBody, prompts: list[str | tuple[int, ...]], *, scored_echo: bool) -> None:
    if raw.suffix:
        raise refused("suffix", "is not supported: a prompt can only be continued.")
    if raw.best_of not in {None, raw.n or 1}:
        raise refused("best_of", "must equal n: every choice that is generated is returned and recorded.")
    if raw.echo and not scored_echo and not all(isinstance(prompt, str) for prompt in prompts):
        raise refused("echo", "needs a text prompt, or logprobs; token ids are the caller's own already.")
    if raw.stream and (scored_echo or raw.prompt_logprobs is not None):
        raise refused(
            "stream", "can't be true where a prompt's logprobs are asked for: they come with the end."
        )


def _prompts(value: str | list[Any]) -> list[str | tuple[int, ...]]:
    """The prompts: text, ids, or a list of several of these."""
    if not (isinstance(value, list) and value and isinstance(value[0], str | list)):
        return [_prompt(value, "prompt")]
    if len(value) > MOST_PROMPTS:
        raise refused("prompt", f"holds {len(value)} prompts; at most {MOST_PROMPTS} go into one request.")
    if len(value) == 1:
        return [_prompt(value[0], "prompt")]
    return [_prompt(prompt, f"prompt[{at}]") for at, prompt in enumerate(value)]


def _prompt(value: Any, where: str) -> str | tuple[int, ...]:
    if not isinstance(value, str | list):
        raise refused(where, "is neither text nor a list of token ids.")
    if not value:
        raise refused(where, "is empty.")
    if isinstance(value, str):
        return value
    for at, token in enumerate(value):
        # bool is a subclass of int; engines count ids in 32 bits.
        if type(token) is not int or not 0 <= token < 2**31:
            raise refused(f"{where}[{at}]", "is not a token id.")
    return tuple(value)


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
