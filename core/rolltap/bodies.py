"""The JSON bodies of requests. A turn of a conversation repeats what was said before, which is not parsed again."""

from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from operator import eq
from typing import Any, NamedTuple

import msgspec
import orjson

from rolltap.bases.converters import ReadBefore
from rolltap.errors import BadRequest

_MOST_KEPT = 4
"""How many of the latest conversations of a session are kept: an agent and its helpers take turns."""

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entries = msgspec.json.Decoder(list[msgspec.Raw])


def parse(data: bytes) -> dict[str, Any]:
    """The body, a JSON object. Raises `BadRequest`."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object", code="invalid_json")
    _check_depth(body)
    return body


def _check_depth(value: Any) -> None:
    """Raise `BadRequest` for what is nested so deep that it can be read but not written."""
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise BadRequest(f"the body can't be handled: {error}", code="invalid_json") from None


class _Parsed(NamedTuple):
    """A list of a body: each entry's bytes, and what they are."""

    raw: Sequence[msgspec.Raw]
    entries: list[Any]


class Bodies:
    """Parses the bodies that a session gets in one dialect.

    Entries at the beginning of a list (`messages`, `tools`) whose bytes are those of an earlier body are the very same
    objects as there, so that whoever reads them can tell by `is` what has been read already.
    """

    def __init__(self) -> None:
        self.read = ReadBefore()
        """What the dialect's converter made of them."""
        self._kept: dict[str, deque[_Parsed]] = {}

    def parse(self, data: bytes) -> dict[str, Any]:
        """The body, a JSON object. Raises `BadRequest`."""
        try:
            fields = _fields.decode(data)
            return {name: self._value(name, raw) for name, raw in fields.items()}
        except (msgspec.DecodeError, orjson.JSONDecodeError, RecursionError):
            return parse(data)  # which says where in the body it is wrong

    def _value(self, name: str, raw: msgspec.Raw) -> Any:
        view = memoryview(raw)
        if bytes(view[:1]) == b"[":
            return self._list(name, _entries.decode(raw))
        value = orjson.loads(view)
        _check_depth(value)
        return value

    def _list(self, name: str, raw: list[msgspec.Raw]) -> list[Any]:
        kept = self._kept.setdefault(name, deque(maxlen=_MOST_KEPT))
        alike = [sum(takewhile(bool, map(eq, each.raw, raw))) for each in kept]
        same = max(alike, default=0)
        new = [orjson.loads(memoryview(each)) for each in raw[same:]]
        _check_depth(new)
        entries = new
        if same:
            at = alike.index(same)
            entries = [*kept[at].entries[:same], *new]
            if same == len(kept[at].raw):
                del kept[at]  # this list goes on from it
        kept.append(_Parsed(raw, entries))
        return entries
