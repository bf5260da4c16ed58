"""An upstream's error as an `UpstreamError`, however it is said."""

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

_MOST_CHARACTERS = 2000
"""Of a text that is no JSON; some servers send whole pages."""


def http_error(status: int, data: bytes, headers: Mapping[str, str]) -> UpstreamError:
    """The error that an answer with this status is."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        text = data.decode(errors="replace").strip()
        body = "" if text.startswith("<") else text[:_MOST_CHARACTERS]
    said, code, _ = _read(body)
    return UpstreamError(said or f"the upstream answered {status}", status=status, code=code, headers=headers)


def told_error(error: Any) -> UpstreamError:
    """The error that an upstream tells of in a reply that began well: the value of `error`."""
    said, code, status = _read({"error": error})
    return UpstreamError(said or "the upstream failed", status=status or 500, code=code)


def _read(body: Any) -> tuple[str, str | None, int | None]:
    """Message, code and status: OpenAI's `{"error": {…}}`, flat ones, lists of them, FastAPI's `detail`, plain text."""
    if isinstance(body, list) and body:
        body = body[0]
    inner = body.get("error") or body if isinstance(body, dict) else body
    if not isinstance(inner, dict):
        return str(inner or ""), None, None
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
    return isinstance(value, int) and 400 <= value < 600
