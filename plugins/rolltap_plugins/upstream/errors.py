"""An upstream's error as an `UpstreamError`, however it is said."""

import re
from collections.abc import Mapping
from typing import Any

import orjson

from rolltap import UpstreamError

_STATUSES = {
    "authentication_error": 401,
    "insufficient_quota": 402,
    "invalid_api_key": 401,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "overloaded_error": 503,
    "permission_error": 403,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "timeout": 504,
    "unavailable_error": 503,
}
"""What an error's type or code means, inside a stream whose own status was 200."""

_MAX_CHARACTERS = 2000
"""Of what an upstream says; some servers send whole pages."""

_TOO_LONG = re.compile(
    r"maximum (context|model) length|max_model_len|longer than the model's context length", re.IGNORECASE
)
"""How engines say that a prompt is too long, for which they have no code."""


def http_error(status: int, data: bytes, headers: Mapping[str, str], what: str = "") -> UpstreamError:
    """The error that an answer with this status is; `what` says who answered, where that should be told."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        text = data.decode(errors="replace").strip()
        body = "" if text.startswith("<") else text
    said, code, _ = _read(body)
    answered = f"{what or 'the upstream'} answered {status}"
    if 300 <= status < 400:
        said = f"{answered} with a redirect, which is not followed: give the address that it leads to"
    elif what:
        said = f"{answered}: {said}" if said else answered
    return _error(said or answered, status, code, headers)


def told_error(error: Any, what: str = "") -> UpstreamError:
    """The error that an upstream tells of in a reply that began well: the value of `error`."""
    said, code, status = _read({"error": error})
    if what:
        said = f"{what} failed: {said}" if said else f"{what} failed"
    return _error(said or "the upstream failed", status or 500, code, {})


def unreadable(what: str, why: object) -> UpstreamError:
    """The error for an answer of another shape than the upstream's protocol has."""
    return UpstreamError(f"the answer of {what or 'the upstream'} can't be read: {why}"[:_MAX_CHARACTERS])


def _error(said: str, status: int, code: str | None, headers: Mapping[str, str]) -> UpstreamError:
    if status < 500 and _TOO_LONG.search(said):
        code = "context_length_exceeded"
    return UpstreamError(said[:_MAX_CHARACTERS], status=status, code=code, headers=headers)


def _read(body: Any) -> tuple[str, str | None, int | None]:
    """Message, code and status: OpenAI's `{"error": {…}}`, flat ones, lists of them, FastAPI's `detail`, plain text."""
    if isinstance(body, list) and body:
        body = body[0]
    inner = body.get("error") or body if isinstance(body, dict) else body
    if not isinstance(inner, dict):
        said = inner if isinstance(inner, str) else orjson.dumps(inner).decode() if inner else ""
        return said, None, None
    said = inner.get("message") or inner.get("detail") or ""
    if not isinstance(said, str):
        said = orjson.dumps(said).decode()
    code, status = inner.get("code"), inner.get("status_code") or inner.get("status")
    number = next((value for value in (code, status) if _is_status(value)), None)
    words = [word for word in (code, inner.get("type")) if isinstance(word, str) and word]
    if number is None:
        number = next((_STATUSES[word] for word in words if word in _STATUSES), None)
    return said, code if isinstance(code, str) and code else None, number


def _is_status(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 400 <= value < 600
