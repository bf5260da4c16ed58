"""The messages and the system prompt of a Messages request."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from rolltap import Content, ImagePart, Message, TextPart, ToolCall
from rolltap_plugins.wire import json_text, refused

# Claude Code puts a value that changes with every request in front of its system prompt. It is no part of what the
# model should read, and it would keep every request from extending the one before.
_VOLATILE = re.compile(r"\A\s*x-anthropic-billing-header:[^\n]*\n*", re.IGNORECASE)

_IMAGE_ONLY = "[image]"
"""The text of a tool's result that is an image: the image itself follows in a user message, where models look."""


class Block(Struct, kw_only=True):
    """A content block of any kind; `cache_control` marks and citations mean nothing here."""

    type: str = "text"
    text: str | None = None
    source: dict[str, Any] | str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: "str | list[Block] | None" = None
    is_error: bool | None = None
    thinking: str | None = None


class WireMessage(Struct, kw_only=True):
    """A message as it stands in the body."""

    role: str
    content: str | list[Block]


def system_text(system: str | Sequence[str | Block]) -> str:
    """The system prompt as one text, without the volatile part."""
    if isinstance(system, str):
        return _VOLATILE.sub("", system)
    texts = []
    for at, item in enumerate(system):
        text = item if isinstance(item, str) else _text(item, f"system[{at}]")
        if text := _VOLATILE.sub("", text):
            texts.append(text)
    return " ".join(texts)


def history(messages: Sequence[WireMessage]) -> list[list[Message]]:
    """The neutral messages that each one is. Raises `BadRequest` that names what can't be one."""
    return [_read(message, f"messages[{at}]") for at, message in enumerate(messages)]


def _read(message: WireMessage, where: str) -> list[Message]:
    match message:
        case WireMessage(role="system"):
            text = system_text(message.content)
            return [Message(role="system", content=text)] if text else []
        case WireMessage(role="user" | "assistant" as role, content=str(text)):
            return [Message(role=role, content=text)]
        case WireMessage(role="assistant", content=list(blocks)):
            return [_assistant(blocks, where)]
        case WireMessage(role="user", content=list(blocks)):
            return _user(blocks, where)
    raise refused(f"{where}.role", f"is {message.role!r}; use user, assistant or system.")


def _assistant(blocks: Sequence[Block], where: str) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    before = ""
    for at, block in enumerate(blocks):
        match block:
            case Block(type="text"):
                # Blocks side by side are lines; a text that thinking interrupted goes on where it stopped.
                texts += ["\n" if before == "text" else "", _text(block, f"{where}.content[{at}]")]
            case Block(type="thinking", thinking=str(thought)):
                thoughts.append(thought)
            case Block(type="redacted_thinking"):
                pass  # readable to Anthropic alone
            case Block(type="tool_use", name=str(name)):
                calls.append(ToolCall(name=name, arguments=json_text(block.input or {}), id=block.id or ""))
            case Block(type="tool_use"):
                raise refused(f"{where}.content[{at}].name", "is missing.")
            case _:
                raise _unsupported(block, f"{where}.content[{at}]")
        before = block.type
    return Message(
        role="assistant",
        content="".join(texts) if texts else None,
        reasoning="".join(thoughts) or None,
        tool_calls=tuple(calls),
    )


def _user(blocks: Sequence[Block], where: str) -> list[Message]:
    """Each tool's result as a message of its own, first; then the text and the images, if there are any."""
    results: list[Message] = []
    parts: list[TextPart | ImagePart] = []
    images: list[ImagePart] = []
    for at, block in enumerate(blocks):
        inside = f"{where}.content[{at}]"
        if block.type == "tool_result":
            message, found = _result(block, inside)
            results.append(message)
            images += found
        else:
            parts.append(_part(block, inside))
    if parts or images or not results:
        results.append(Message(role="user", content=_joined([*images, *parts])))
    return results


def _result(block: Block, where: str) -> tuple[Message, list[ImagePart]]:
    """A tool's result as text, and the images in it."""
    if block.tool_use_id is None:
        raise refused(f"{where}.tool_use_id", "is missing.")
    content = block.content or ""
    parts: list[TextPart | ImagePart]
    if isinstance(content, str):
        parts = [TextPart(content)]
    else:
        parts = [_part(inner, f"{where}.content[{at}]") for at, inner in enumerate(content)]
    images = [part for part in parts if isinstance(part, ImagePart)]
    text = "\n".join(part.text for part in parts if isinstance(part, TextPart))
    if images and not text:
        text = _IMAGE_ONLY
    if block.is_error:
        text = f"Error: {text}" if text else "Error"
    return Message(role="tool", content=text, tool_call_id=block.tool_use_id), images


def _joined(parts: Sequence[TextPart | ImagePart]) -> Content:
    """Text blocks alone are one text; beside an image each keeps its place."""
    if any(isinstance(part, ImagePart) for part in parts):
        return tuple(parts)
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))


def _part(block: Block, where: str) -> TextPart | ImagePart:
    match block:
        case Block(type="text"):
            return TextPart(_text(block, where))
        case Block(type="image", source={"type": "base64", "media_type": str(kind), "data": str(data)}):
            return ImagePart(f"data:{kind};base64,{data}")
        case Block(type="image", source={"type": "url", "url": str(url)}):
            return ImagePart(url)
        case Block(type="image"):
            raise refused(f"{where}.source", "must be base64 with media_type and data, or a url.")
        case Block(type="document", source={"type": "text", "data": str(text)}):
            return TextPart(text)
        case Block(type="search_result", content=list(inner)):
            return TextPart("\n".join(_texts(inner, where)))
    raise _unsupported(block, where)


def _texts(blocks: Iterable[Block], where: str) -> Iterable[str]:
    return (_text(block, f"{where}.content[{at}]") for at, block in enumerate(blocks))


def _text(block: Block, where: str) -> str:
    if block.type != "text":
        raise _unsupported(block, where)
    if block.text is None:
        raise refused(f"{where}.text", "is missing.")
    return block.text


def _unsupported(block: Block, where: str) -> Exception:
    return refused(f"{where}.type", f"is {block.type!r}, which can't be given to a model here in this place.")
