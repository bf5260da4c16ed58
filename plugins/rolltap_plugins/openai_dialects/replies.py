"""The parts of replies that OpenAI's dialects share: finish reasons, usage, logprobs and errors."""

from collections.abc import Sequence
from typing import Any

from rolltap import ErrorInfo, ErrorReply, FinishReason, PromptToken, TokenLogprob, Usage
from rolltap_plugins.wire import data_frame, retry_headers

DONE = b"data: [DONE]\n\n"

STREAM_FAILED = "backend_error"
"""The code of every error inside a stream: by then the HTTP status has told the client that all was well."""


def finish_reason(reason: FinishReason) -> str:
    """OpenAI's word for it. An output that the engine gave up on is a cut one to clients, which know no "abort"."""
    return "length" if reason == "abort" else reason


def usage_body(usage: Usage) -> dict[str, Any]:
    """The `usage` object, with details where they are known."""
    body: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    if usage.cached_tokens is not None:
        body["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if usage.reasoning_tokens is not None:
        body["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return body


def logprobs_body(tokens: list[TokenLogprob]) -> list[dict[str, Any]]:
    """Chat's list of tokens with their logprobs and alternatives."""
    return [
        {**_token_body(token), "top_logprobs": [_token_body(other) for other in token.top]}
        for token in tokens
    ]


def prompt_logprobs_body(tokens: Sequence[PromptToken] | None) -> list[dict[str, Any] | None] | None:
    """A prompt's logprobs as vLLM writes them: for each token the candidates by their ids, the likeliest first."""
    if tokens is None:
        return None
    return [
        None
        if not token.top
        else {
            str(other.id): {"logprob": other.logprob, "rank": rank, "decoded_token": other.token}
            for rank, other in enumerate(token.top, 1)
        }
        for token in tokens
    ]


def _token_body(token: TokenLogprob) -> dict[str, Any]:
    raw = token.bytes if token.bytes is not None else list(token.token.encode())
    return {"token": token.token, "logprob": token.logprob, "bytes": raw}


def error_reply(info: ErrorInfo, request_id: str) -> ErrorReply:
    """An error before the first byte of a reply."""
    error = {"message": info.message, "type": info.type, "param": info.param, "code": info.code}
    headers = {"x-request-id": request_id, **retry_headers(info)}
    return ErrorReply(status=info.status, body={"error": error}, headers=headers)


def stream_error(info: ErrorInfo) -> bytes:
    """The frames that end a stream which failed; `reason` says what `code` would have said before it began."""
    error = {
        "message": info.message,
        "type": info.type,
        "param": info.param,
        "code": STREAM_FAILED,
        "reason": info.code,
    }
    return data_frame({"error": error}) + DONE
