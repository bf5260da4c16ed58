"""Messages reduced to what tells one from another, so that a client's changes of form still match.

Clients do not send back what they were given: arguments come re-serialized, ids dropped, content as null, "" or a
list of parts, thinking removed, outer whitespace stripped, schemas with other key order. None of that changes a
fingerprint. What the model or the user said does.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import orjson

from rolltap.types.chat import Message, ToolCall
from rolltap.types.record import Context, Fingerprint

_THINK_END = "</think>"


def _digest(data: bytes) -> bytes:
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
    if isinstance(value, list):
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
    return _digest(
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
    for image in message.images:
        content += b"\0" + _encode(image.url)
    return Fingerprint(
        role="system" if message.role == "developer" else message.role,
        content=_digest(content),
        calls=_calls(message.tool_calls),
        reasoning=_digest(_encode(reasoning.strip())) if reasoning.strip() else b"",
    )


def context(model: str, tools: Iterable[Mapping[str, Any]], template_kwargs: Mapping[str, Any]) -> Context:
    """What a conversation stands on. The order of tools and of their keys does not count."""
    return Context(
        model=model,
        tools=_digest(b"\n".join(sorted(canonical_json(tool) for tool in tools))),
        template_kwargs=_digest(canonical_json(template_kwargs)),
    )


def chain_start(ctx: Context) -> bytes:
    """The first link of a conversation's hash chain."""
    return _digest(b"\0".join([ctx.model.encode(), ctx.tools, ctx.template_kwargs]))


def chain_next(previous: bytes, message: Fingerprint) -> bytes:
    """The link after `previous` for one more message."""
    return _digest(b"".join([previous, message.role.encode(), b"\0", message.content, message.calls]))


def chain(start: bytes, messages: Sequence[Fingerprint]) -> list[bytes]:
    """A link for each message, each standing for the whole conversation up to it."""
    links = []
    for message in messages:
        start = chain_next(start, message)
        links.append(start)
    return links
