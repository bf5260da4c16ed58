"""System messages where an upstream takes them: many servers run templates that want one, in front of everything."""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from rolltap import Content, Message, Part, TextPart

Systems = Literal["first", "anywhere"]

_SYSTEM = frozenset({"system", "developer"})


def placed(messages: Sequence[Message], systems: Systems, *, developer: bool) -> list[Message]:
    """The messages with `developer` ones as system ones unless the upstream takes that role, and systems in their place.

    With "first" those at the beginning become one; the text of a later one goes into the user's message before it, else
    into the one behind it, else into one of its own. Nothing moves over an assistant's message.
    """
    known = [message if developer else _as_system(message) for message in messages]
    leading = next((at for at, one in enumerate(known) if one.role not in _SYSTEM), len(known))
    if systems == "anywhere" or (leading < 2 and not any(one.role in _SYSTEM for one in known[leading:])):
        return known
    out = (
        [msgspec.structs.replace(known[0], content=_joined(one.content for one in known[:leading]))]
        if leading
        else []
    )
    waiting: list[Content] = []
    for message in known[leading:]:
        if message.role in _SYSTEM and out and out[-1].role == "user":
            out[-1] = msgspec.structs.replace(out[-1], content=_joined([out[-1].content, message.content]))
        elif message.role in _SYSTEM:
            waiting.append(message.content)
        elif message.role == "user" and waiting:
            out.append(msgspec.structs.replace(message, content=_joined([*waiting, message.content])))
            waiting.clear()
        else:
            if message.role == "assistant" and waiting:
                out.append(Message(role="user", content=_joined(waiting)))
                waiting.clear()
            out.append(message)
    if waiting:
        out.append(Message(role="user", content=_joined(waiting)))
    return out


def _as_system(message: Message) -> Message:
    return msgspec.structs.replace(message, role="system") if message.role == "developer" else message


def _joined(contents: Iterable[Content]) -> Content:
    """Texts with an empty line between; parts keep what stands beside them."""
    found = [content for content in contents if content]
    if all(isinstance(content, str) for content in found):
        return "\n\n".join(str(content) for content in found)
    parts: list[Part] = []
    for content in found:
        parts += [TextPart(content)] if isinstance(content, str) else content
    return tuple(parts)
