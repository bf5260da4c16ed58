"""System text where an upstream takes it."""

from collections.abc import Sequence

import msgspec

from rolltap import Content, Message, Part, TextPart

_SYSTEMS = frozenset({"system", "developer"})


def placed(messages: Sequence[Message], *, systems: str, developer: bool) -> list[Message]:
    """The messages with the roles that an upstream knows, and its system text where it takes it.

    :param systems: "first": the system messages that stand first are one, and the text of later ones is part of the user's
        message beside them, as many chat templates demand. "anywhere": all stay where they are.
    :param developer: whether the upstream knows the role "developer"; else it is "system".
    """
    known = [
        msgspec.structs.replace(message, role="system")
        if message.role == "developer" and not developer
        else message
        for message in messages
    ]
    leading = next((at for at, one in enumerate(known) if one.role not in _SYSTEMS), len(known))
    if systems == "anywhere" or (leading < 2 and all(one.role not in _SYSTEMS for one in known[leading:])):
        return known
    read = [_together(known[:leading])] if leading else []
    waiting: list[Message] = []
    for message in known[leading:]:
        if message.role in _SYSTEMS and read and read[-1].role == "user":
            read[-1] = _together([read[-1], message])
        elif message.role in _SYSTEMS:
            waiting.append(message)
        elif waiting and message.role == "user":
            read.append(_together([message, *waiting], [*waiting, message]))
            waiting = []
        elif waiting and message.role == "assistant":
            read += [_together([Message(role="user"), *waiting], waiting), message]
            waiting = []
        else:
            read.append(message)
    if waiting:
        read.append(_together([Message(role="user"), *waiting], waiting))
    return read


def _together(messages: Sequence[Message], order: Sequence[Message] | None = None) -> Message:
    """The first of the messages with the content of all that are in `order`."""
    if len(messages) == 1:
        return messages[0]
    contents = [message.content for message in order or messages if message.content]
    joined: Content = "\n\n".join(content for content in contents if isinstance(content, str))
    if not all(isinstance(content, str) for content in contents):
        parts: list[Part] = []
        for content in contents:
            begins = [TextPart("\n\n")] if parts else []
            parts += [*begins, *([TextPart(content)] if isinstance(content, str) else content or ())]
        joined = tuple(parts)
    return msgspec.structs.replace(messages[0], content=joined)
