"""Replies in Google's form, plain and streamed, and its errors."""

from typing import Any, ClassVar

import orjson

from rolltap import (
    ChatDelta,
    ChatRequest,
    Choice,
    Completion,
    ErrorInfo,
    ErrorReply,
    StreamEncoder,
    TokenLogprob,
    ToolCall,
)
from rolltap_plugins.google_generate.contents import signature_in
from rolltap_plugins.google_generate.requests import State
from rolltap_plugins.wire import data_frame, retry_headers

_FINISH_REASONS = {"length": "MAX_TOKENS", "abort": "MAX_TOKENS", "content_filter": "SAFETY"}
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    402: "RESOURCE_EXHAUSTED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    413: "INVALID_ARGUMENT",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def reply(request: ChatRequest, completion: Completion) -> dict[str, Any]:
    """The body of a plain reply."""
    candidates = []
    for choice in completion.choices or [Choice()]:
        parts: list[dict[str, Any]] = []
        if choice.reasoning and _shows_thoughts(request):
            parts.append({"text": choice.reasoning, "thought": True})
        if choice.text:
            parts.append({"text": choice.text})
        parts += _last_parts(choice)
        candidate = _candidate(choice.index, parts) | _end(choice)
        if choice.logprobs is not None:
            candidate["logprobsResult"] = _logprobs(choice.logprobs)
        candidates.append(candidate)
    return _chunk(completion, candidates) | {"usageMetadata": _usage(completion)}


def error_reply(info: ErrorInfo) -> ErrorReply:
    """An error before the first byte of a reply."""
    return ErrorReply(status=info.status, body=_error(info), headers=retry_headers(info))


class GenerateStream(StreamEncoder):
    """A streamed reply: each event is a reply with what is new. Calls come whole, at the end."""

    def __init__(self, request: ChatRequest, completion: Completion) -> None:
        self._request = request
        self._completion = completion

    def start(self) -> bytes:
        """Nothing: the first piece of text begins the stream."""
        return b""

    def delta(self, delta: ChatDelta) -> bytes:
        """The thinking, where it is wanted, and the text."""
        parts: list[dict[str, Any]] = []
        if delta.reasoning and _shows_thoughts(self._request):
            parts.append({"text": delta.reasoning, "thought": True})
        if delta.text:
            parts.append({"text": delta.text})
        if not parts:
            return b""
        return self._frame(_chunk(self._completion, [_candidate(delta.index, parts)]))

    def finish(self, completion: Completion) -> bytes:
        """The calls, why each candidate ended, and the usage."""
        candidates = []
        for choice in completion.choices or [Choice()]:
            candidate = _candidate(choice.index, _last_parts(choice)) | _end(choice)
            if choice.logprobs is not None:
                candidate["logprobsResult"] = _logprobs(choice.logprobs)
            candidates.append(candidate)
        last = _chunk(completion, candidates) | {"usageMetadata": _usage(completion)}
        return self._frame(last) + self._closing()

    def error(self, info: ErrorInfo) -> bytes:
        """The error, after which nothing comes."""
        return self._frame(_error(info)) + self._closing()

    def ping(self) -> bytes:
        """A reply in which nothing is new: clients do not take comments for such."""
        return self._frame(_chunk(self._completion, [_candidate(0, [])]))

    def _frame(self, value: dict[str, Any]) -> bytes:
        return data_frame(value)

    def _closing(self) -> bytes:
        return b""


class GenerateArray(GenerateStream):
    """The same as one JSON array, whose items come one by one: what clients get that do not ask for events."""

    content_type: ClassVar[str] = "application/json"

    def __init__(self, request: ChatRequest, completion: Completion) -> None:
        super().__init__(request, completion)
        self._begun = False

    def ping(self) -> bytes:
        """White space."""
        return b"\n" if self._begun else b""

    def _frame(self, value: dict[str, Any]) -> bytes:
        before = b",\r\n" if self._begun else b"["
        self._begun = True
        return before + orjson.dumps(value)

    def _closing(self) -> bytes:
        return b"]"


def _shows_thoughts(request: ChatRequest) -> bool:
    return isinstance(request.state, State) and request.state.shows_thoughts


def _chunk(completion: Completion, candidates: list[dict[str, Any]]) -> dict[str, Any]:
    return {"candidates": candidates, "modelVersion": completion.model, "responseId": completion.id}


def _candidate(index: int, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A candidate. It has at least an empty text: clients take one without parts for a failure."""
    return {"content": {"role": "model", "parts": parts or [{"text": ""}]}, "index": index}


def _end(choice: Choice) -> dict[str, Any]:
    return {"finishReason": _FINISH_REASONS.get(choice.finish_reason, "STOP")}


def _last_parts(choice: Choice) -> list[dict[str, Any]]:
    """The calls, and an empty text with the answer's own signature where the upstream has given one."""
    parts = [_call_part(call) for call in choice.tool_calls]
    signature = signature_in(choice.extra)
    if signature is not None:
        parts.insert(0, {"text": "", "thoughtSignature": signature})
    return parts


def _call_part(call: ToolCall) -> dict[str, Any]:
    """A call. Arguments that are no JSON object can't be in one, so the client gets such a call as text."""
    arguments: Any = {}
    if call.arguments.strip():
        try:
            arguments = orjson.loads(call.arguments)
        except orjson.JSONDecodeError:
            arguments = None
    if not isinstance(arguments, dict):
        text = f"{call.name} was called with arguments that are no JSON object: {call.arguments}"
        return {"text": text}
    part: dict[str, Any] = {"functionCall": {"id": call.id, "name": call.name, "args": arguments}}
    signature = signature_in(call.extra)
    return part if signature is None else {**part, "thoughtSignature": signature}


def _usage(completion: Completion) -> dict[str, int]:
    usage = completion.usage
    thoughts = usage.reasoning_tokens or 0
    counts = {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": max(0, usage.completion_tokens - thoughts),
        "totalTokenCount": usage.prompt_tokens + usage.completion_tokens,
    }
    if usage.reasoning_tokens is not None:
        counts["thoughtsTokenCount"] = thoughts
    if usage.cached_tokens is not None:
        counts["cachedContentTokenCount"] = usage.cached_tokens
    return counts


def _logprobs(tokens: list[TokenLogprob]) -> dict[str, Any]:
    return {
        "chosenCandidates": [_logprob(token) for token in tokens],
        "topCandidates": [{"candidates": [_logprob(one) for one in token.top]} for token in tokens],
    }


def _logprob(token: TokenLogprob) -> dict[str, Any]:
    told = {"token": token.token, "logProbability": token.logprob}
    return told if token.id is None else {**told, "tokenId": token.id}


def _error(info: ErrorInfo) -> dict[str, Any]:
    """Google's form; its clients read from the details when to come back."""
    error: dict[str, Any] = {
        "code": info.status,
        "message": info.message,
        "status": _STATUSES.get(info.status, "INVALID_ARGUMENT" if info.status < 500 else "INTERNAL"),
    }
    details: list[dict[str, Any]] = []
    if info.code is not None:
        details.append(
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": info.code.upper(),
                "domain": "rolltap",
            }
        )
    if info.param is not None:
        violation = {"field": info.param, "description": info.message}
        details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]})
    if info.retry_after is not None:
        delay = f"{max(0.0, info.retry_after):g}s"
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay})
    return {"error": {**error, "details": details} if details else error}
