"""Messages reduced to what tells one from another, so that a client's changes of form still match.

Clients do not send back what they were given: arguments come re-serialized, ids dropped, content as null, "" or a
list of parts, thinking removed, outer whitespace stripped, schemas with other key order. None of that changes a
fingerprint. What the model or the user said does.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import orjson
from msgspec import Struct

from rolltap.types.chat import FilePart, ImagePart, Message, ToolCall

_THINK_END = "</think>"


class Fingerprint(Struct, array_like=True, frozen=True, gc=False):
    """A message reduced to what tells it from another: hashes of its canonical content and calls."""

    role: str
    content: bytes
    calls: bytes = b""
    reasoning: bytes = b""
    """Tells two outputs with the same answer apart; clients drop thinking, so no match depends on it."""

    def same(self, other: "Fingerprint") -> bool:
        """Whether the two say the same, thinking aside."""
        return self.role == other.role and self.content == other.content and self.calls == other.calls


def digest(data: bytes) -> bytes:
    """A short hash: 16 bytes."""
    return blake2b(data, digest_size=16).digest()


def _number(value: float) -> Any:
    # JavaScript knows one kind of number: 1.0 comes back as 1, and integers above 2**53 rounded.
    try:
        number = float(value)
    except OverflowError:
        return str(value)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def canonical_json(value: Any) -> bytes:
    """JSON in which neither key order nor the spelling of numbers and strings counts."""
    return orjson.dumps(_plain(value), option=orjson.OPT_SORT_KEYS)


def _arguments(call: ToolCall) -> Any:
    text = call.arguments.strip()
    if not text:
        return {}
    try:
        arguments = _plain(orjson.loads(text))
        orjson.dumps(arguments)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError):
        return text  # no JSON, or nested too deep to write it again
    return arguments


def _calls(calls: Sequence[ToolCall]) -> bytes:
    if not calls:
        return b""
    return digest(
        orjson.dumps([[call.name, _arguments(call)] for call in calls], option=orjson.OPT_SORT_KEYS)
    )


def _encode(text: str) -> bytes:
    # A lone surrogate can stand in JSON ("\ud83d" alone) but not in UTF-8.
    return text.encode("utf-8", "surrogatepass")


def fingerprint(message: Message) -> Fingerprint:
    """The message's fingerprint. Thinking, ids, names and outer whitespace do not count."""
    text, reasoning = message.text, message.reasoning or ""
    if message.role == "assistant" and _THINK_END in text:
        thinking, _, text = text.rpartition(_THINK_END)
        reasoning = reasoning or thinking.removeprefix("<think>")
    content = _encode(text.strip())
    if isinstance(message.content, tuple):
        for part in message.content:
            if isinstance(part, ImagePart | FilePart):
                content += b"\0" + _encode(part.url or str(sorted(part.extra.items())))
    return Fingerprint(
        role="system" if message.role == "developer" else message.role,
        content=digest(content),
        calls=_calls(message.tool_calls),
        reasoning=digest(_encode(reasoning.strip())) if reasoning.strip() else b"",
    )


def canonical_digest(value: Any) -> bytes:
    """The digest of a JSON value in its canonical form."""
    return digest(canonical_json(value))


def tools_digest(tools: Iterable[Mapping[str, Any]]) -> bytes:
    """The digest of a request's tools, in whatever order they come."""
    return digest(b"\n".join(sorted(canonical_json(tool) for tool in tools)))


def chain_next(previous: bytes, message: Fingerprint) -> bytes:
    """The link after `previous` for one more message."""
    return digest(b"".join([previous, message.role.encode(), b"\0", message.content, message.calls]))


def chain(start: bytes, messages: Sequence[Fingerprint]) -> list[bytes]:
    """A link for each message, each standing for the whole conversation up to it; `start` is the context's digest."""
    links = []
    for message in messages:
        start = chain_next(start, message)
        links.append(start)
    return links
