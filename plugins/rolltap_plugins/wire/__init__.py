"""What every wire format here needs: typed bodies, errors that name a field, frames of an event stream."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec
import orjson

from rolltap import BadRequest, ChatDelta, ErrorInfo, ToolCallDelta

_Body = TypeVar("_Body", bound=msgspec.Struct)

_WHERE = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]+)`$")


def read_body(body: Mapping[str, Any], shape: type[_Body]) -> _Body:
    """The body as a typed value. Raises `BadRequest` that names the wrong field, such as `messages[0].role`."""
    try:
        return msgspec.convert(body, shape)
    except msgspec.ValidationError as error:
        raise _bad_field(str(error)) from None


def _bad_field(text: str) -> BadRequest:
    found = _WHERE.match(text)
    what, path = (found["what"], found["path"] or "") if found else (text, "")
    if missing := _MISSING.match(what):
        param = f"{path}.{missing['name']}".lstrip(".")
        return BadRequest(f"{param} is missing.", param=param, code="missing_required_parameter")
    return BadRequest(
        f"{path or 'body'}: {what[:1].lower()}{what[1:]}.", param=path or None, code="invalid_type"
    )


def refused(param: str, why: str) -> BadRequest:
    """The error for a field whose value is of the right type but can't be used."""
    return BadRequest(f"{param} {why}", param=param, code="invalid_value")


def no_tool_works(names: Sequence[str]) -> BadRequest:
    """The error for a request whose tools are the provider's own: without them its answer would be made up."""
    return BadRequest(
        f"tools: none of them works here: {', '.join(names)} can be run by the provider's own servers alone; "
        "offer a tool that the client runs itself, or send no tools",
        param="tools",
        code="unsupported_tool",
    )


def one_of(words: Iterable[str]) -> str:
    """The words as people write them: `a, b or c`."""
    *head, last = words
    return f"{', '.join(head)} or {last}" if head else last


def unnamed(body: Mapping[str, Any], *known: Iterable[str]) -> dict[str, Any]:
    """The fields of the body that are in none of `known`; null ones are left out, since they ask for nothing."""
    names = set().union(*known)
    return {name: value for name, value in body.items() if name not in names and value is not None}


def json_text(value: Any) -> str:
    """A value as compact JSON text."""
    return orjson.dumps(value).decode()


def data_frame(data: Mapping[str, Any]) -> bytes:
    """A frame without an event's name."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


def event_frame(data: Mapping[str, Any]) -> bytes:
    """A frame whose event is the data's own `type`."""
    return b"event: " + str(data["type"]).encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"


def fragments(delta: ChatDelta) -> list[ToolCallDelta]:
    """The delta's tool calls; an encoder is never given whole ones."""
    return cast("list[ToolCallDelta]", delta.tool_calls)


def retry_headers(info: ErrorInfo) -> dict[str, str]:
    """What tells a client whether and when to try again. Whole seconds, rounded up, as HTTP wants them."""
    headers = {}
    if info.retry_after is not None:
        headers["retry-after"] = str(max(0, math.ceil(info.retry_after)))
    if info.should_retry is not None:
        headers["x-should-retry"] = "true" if info.should_retry else "false"
    return headers
