"""Content blocks of the Messages API, and what models can be given of them."""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from typing import Any

import orjson
from msgspec import Struct

from rolltap import Content, FilePart, ImagePart, Part, TextPart
from rolltap_plugins.wire import json_text, refused

_KEPT_PREFIX = "rolltap."
"""How the data of a `redacted_thinking` begins that holds what an upstream wants back."""


class Block(Struct, kw_only=True):
    """A content block of any kind; citations mean nothing here."""

    type: str = "text"
    text: str | None = None
    source: dict[str, Any] | str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: "str | list[Block] | dict[str, Any] | None" = None
    is_error: bool | None = None
    thinking: str | None = None
    data: str | None = None
    title: str | None = None
    url: str | None = None
    tool_name: str | None = None
    cache_control: dict[str, Any] | None = None

    @property
    def extra(self) -> dict[str, Any]:
        """What stands beside the block for an upstream that knows it."""
        return {} if self.cache_control is None else {"cache_control": self.cache_control}


def text_of(block: Block, where: str) -> str:
    """A text block's text. Raises `BadRequest` for another block."""
    if block.type != "text":
        raise unsupported(block, where)
    if block.text is None:
        raise refused(f"{where}.text", "is missing.")
    return block.text


def unsupported(block: Block, where: str) -> Exception:
    """The error for a block that can't stand where it stands."""
    return refused(f"{where}.type", f"is {block.type!r}, which can't be given to a model here in this place.")


def user_parts(block: Block, where: str) -> list[Part]:
    """What a block of the user's, or one of a tool's result, is to a model."""
    match block:
        case Block(type="text"):
            return [TextPart(text_of(block, where), extra=block.extra)]
        case Block(type="image"):
            return [_image(block, where)]
        case Block(type="document"):
            return _document(block, where)
        case Block(type="search_result", content=list(inner)):
            texts = [text_of(one, f"{where}.content[{at}]") for at, one in enumerate(inner)]
            return [TextPart("\n".join(texts), extra=block.extra)]
        case Block(type="container_upload"):
            return []  # a file in a container that only Anthropic's own tools can reach
    words = providers_words(block)
    if words is None:
        raise unsupported(block, where)
    return [TextPart(words)] if words else []


def providers_words(block: Block) -> str | None:
    """What a block of the provider's own tools says, in words; "" where it says nothing. None for other blocks."""
    match block:
        case Block(type="tool_reference"):
            return f"[the tool {block.tool_name or block.name} can be used now]"
        case Block(type="server_tool_use" | "mcp_tool_use"):
            return f"[{block.name} was called with {json_text(block.input or {})}]"
        case Block(type="compaction"):
            return block.content if isinstance(block.content, str) else ""
        case Block(type="fallback"):
            return ""
        case Block(type=str(kind)) if kind.endswith("_tool_result"):
            return f"[{kind.removesuffix('_tool_result')} gave: {_found(block.content)}]"
    return None


def _found(content: str | Sequence[Block] | dict[str, Any] | None) -> str:
    """The readable part of a result: much of it is encrypted, for the provider's own model."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return json_text({name: value for name, value in content.items() if not name.startswith("encrypted")})
    lines = [
        one.text or " ".join(filter(None, [one.title, one.url])) or providers_words(one) or ""
        for one in content or ()
    ]
    return "\n".join(filter(None, lines)) or "nothing"


def _image(block: Block, where: str) -> Part:
    match block.source:
        case {"type": "base64", "media_type": str(kind), "data": str(data)}:
            return ImagePart(f"data:{kind};base64,{data}", extra=block.extra)
        case {"type": "url", "url": str(url)}:
            return ImagePart(url, extra=block.extra)
        case {"type": "file", "file_id": str(file_id)}:
            return FilePart(media_type="image/*", extra={**block.extra, "file_id": file_id})
    raise refused(
        f"{where}.source", "must be base64 with media_type and data, a url, or a file with its file_id."
    )


def _document(block: Block, where: str) -> list[Part]:
    name, extra = block.title or "", block.extra
    match block.source:
        case {"type": "text", "data": str(text)}:
            return [TextPart(text, extra=extra)]
        case {"type": "content", "content": str(text)}:
            return [TextPart(text, extra=extra)]
        case {"type": "content", "content": list(inner)}:
            return _nested(inner, f"{where}.source.content")
        case {"type": "base64", "data": str(data), **more}:
            kind = str(more.get("media_type") or "application/pdf")
            url = f"data:{kind};base64,{data}"
            named = name or ("document.pdf" if kind == "application/pdf" else "")
            return [FilePart(media_type=kind, url=url, name=named, extra=extra)]
        case {"type": "url", "url": str(url)}:
            return [FilePart(media_type="application/pdf", url=url, name=name, extra=extra)]
        case {"type": "file", "file_id": str(file_id)}:
            return [FilePart(media_type="", name=name, extra={**extra, "file_id": file_id})]
    raise refused(
        f"{where}.source", "must be text or base64 with its data, content, a url, or a file with its file_id."
    )


def _nested(inner: Sequence[Any], where: str) -> list[Part]:
    parts: list[Part] = []
    for at, one in enumerate(inner):
        match one:
            case {"type": "text", "text": str(text)}:
                parts.append(TextPart(text))
            case {"type": "image", "source": dict(source)}:
                parts.append(_image(Block(type="image", source=source), f"{where}[{at}]"))
            case _:
                raise refused(f"{where}[{at}]", "must be a text or an image.")
    return parts


def joined(parts: Sequence[Part], between: str = "\n") -> Content:
    """The parts as a message's content: texts alone are one text.

    Beside attachments each keeps its place. Texts with something of their own beside them stay apart too, and together
    read as the one text does, so that a mark which wanders from block to block changes nothing that a model reads.
    """
    if not all(isinstance(part, TextPart) for part in parts):
        return tuple(parts)
    texts = [part for part in parts if isinstance(part, TextPart)]
    if not any(part.extra for part in texts):
        return between.join(part.text for part in texts)
    return tuple(
        TextPart(between + part.text if at else part.text, extra=part.extra) for at, part in enumerate(texts)
    )


def kept_block(kept: dict[str, Any]) -> dict[str, Any]:
    """A block that clients send back unread: it holds what the upstream wants to see again."""
    data = _KEPT_PREFIX + b64encode(orjson.dumps(kept)).decode()
    return {"type": "redacted_thinking", "data": data}


def kept_in(blocks: Iterable[Block]) -> dict[str, Any]:
    """What `kept_block` has put into one of these blocks; {} where there is none."""
    for block in blocks:
        if block.type == "redacted_thinking" and (block.data or "").startswith(_KEPT_PREFIX):
            try:
                kept = orjson.loads(b64decode((block.data or "")[len(_KEPT_PREFIX) :], validate=True))
            except (binascii.Error, ValueError):
                continue
            if isinstance(kept, dict):
                return kept
    return {}
