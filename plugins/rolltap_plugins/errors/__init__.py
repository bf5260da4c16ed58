"""What an exception means to a client: by its type and status first, then by its words."""

import json
import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import aiohttp
import msgspec

from rolltap import BackendView, ErrorInfo, RequestError, UpstreamError, hookimpl
from rolltap_plugins.errors.kinds import (
    AUTHENTICATION,
    BAD_REQUEST,
    BAD_RESPONSE,
    BY_CODE,
    BY_NAME,
    BY_STATUS,
    BY_TYPE_WORD,
    PERMISSION,
    SERVER,
    TIMEOUT,
    UNREACHABLE,
    Kind,
    by_text,
    by_words,
)

# The first that fits counts: aiohttp's timeouts are connection errors too, its torn bodies are not.
_BY_TYPE: tuple[tuple[tuple[type[BaseException], ...], Kind], ...] = (
    ((TimeoutError,), TIMEOUT),
    (
        (aiohttp.ClientPayloadError, json.JSONDecodeError, msgspec.DecodeError, UnicodeDecodeError),
        BAD_RESPONSE,
    ),
    ((FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError), SERVER),
    # Name resolution and the network's own failures are plain OSErrors.
    ((aiohttp.ClientConnectionError, aiohttp.InvalidURL, OSError), UNREACHABLE),
)


@hookimpl
def classify_error(error: BaseException, backend: BackendView | None) -> ErrorInfo:
    """An answer for every exception, so that no other plugin's is asked after this one."""
    return classify(error, backend)


def classify(error: BaseException, backend: BackendView | None = None) -> ErrorInfo:
    """What the exception means to a client. An exception that says nothing is a plain 500."""
    if isinstance(error, RequestError):
        return error.info
    kind, code = _kind(error), _code(error)
    sentence = kind.sentence.format(f"The backend {backend.name}" if backend else "The backend")
    param = getattr(error, "param", None) or getattr(error, "parameter_name", None)
    return ErrorInfo(
        status=kind.status,
        message=_message(error, kind, sentence),
        type=kind.type,
        # A 400 says little by itself, so the upstream's own word for it goes on to the client.
        code=code if kind is BAD_REQUEST and code else kind.code,
        param=param if isinstance(param, str) else None,
        retry_after=_retry_after(error),
        should_retry=kind.should_retry,
    )


def _message(error: BaseException, kind: Kind, sentence: str) -> str:
    """The exception's own words, behind a sentence where they are the network's, which say nothing to a client."""
    words = str(error)
    if kind is UNREACHABLE and words:
        return f"{sentence} ({words})"
    return words or sentence


def _kind(error: BaseException) -> Kind:
    if (code := _code(error)) in BY_CODE:
        return BY_CODE[code]
    for base in type(error).__mro__:
        if base.__name__ in BY_NAME:
            return by_words(str(error), _by_status_too(BY_NAME[base.__name__], _status(error)))
    status = _status(error)
    if status is not None or isinstance(error, UpstreamError):
        return _by_status(str(error), status)
    for types, kind in _BY_TYPE:
        if isinstance(error, types):
            return kind
    # any-llm keeps the provider's exception, which alone tells a timeout from a refused connection.
    inner = getattr(error, "original_exception", None)
    if isinstance(inner, BaseException) and (found := _kind(inner)) is not SERVER:
        return found
    return _by_what_is_said(error)


def _by_what_is_said(error: BaseException) -> Kind:
    word = _type_word(error)
    return by_words(str(error), BY_TYPE_WORD[word]) if word in BY_TYPE_WORD else by_text(str(error))


def _by_status_too(kind: Kind, status: int | None) -> Kind:
    """The status's kind where it says more than the name: any-llm has one name for 401 and 403, one for most 4xx."""
    exact = BY_STATUS.get(status) if status is not None else None
    if exact is not None and (kind is BAD_REQUEST or (kind is AUTHENTICATION and exact is PERMISSION)):
        return exact
    return kind


def _by_status(text: str, status: int | None) -> Kind:
    if status is None or status < 400:
        return BAD_RESPONSE  # a reply that ended early, or a good status with a bad body
    kind = BY_STATUS.get(status)
    if kind is None:
        kind = SERVER if status >= 500 else msgspec.structs.replace(BAD_REQUEST, status=status)
    return by_words(text, kind)


def _status(error: BaseException) -> int | None:
    """The HTTP status, by the names that aiohttp, httpx and providers' SDKs have for it."""
    for holder in (error, getattr(error, "response", None)):
        for name in ("status_code", "status"):
            status = getattr(holder, name, None)
            if isinstance(status, int) and 100 <= status < 600:
                return status
    return None


def _code(error: BaseException) -> str | None:
    if isinstance(error, aiohttp.ClientResponseError):
        return None  # its `code` is the deprecated name of its status
    code = getattr(error, "code", None)
    return code if isinstance(code, str) and code else None


def _type_word(error: BaseException) -> str:
    """What the upstream calls the error, by any-llm's name for it and by providers' SDKs'."""
    words = (getattr(error, name, None) for name in ("error_type", "type"))
    return next((word for word in words if isinstance(word, str)), "")


def _retry_after(error: BaseException) -> float | None:
    """Seconds, from the exception itself or from its response's headers."""
    own = getattr(error, "retry_after", None)
    if own is not None:
        return _seconds(str(own))
    for holder in (error, getattr(error, "response", None)):
        headers = getattr(holder, "headers", None)
        if isinstance(headers, Mapping):
            by_name = {str(name).lower(): str(value) for name, value in headers.items()}
            if (milliseconds := _seconds(by_name.get("retry-after-ms", ""))) is not None:
                return milliseconds / 1000
            return _seconds(by_name.get("retry-after", ""))
    return None


def _seconds(text: str) -> float | None:
    """A number of seconds, or the time until an HTTP date; None for what is neither."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
