"""Images, documents and recordings for models that read text only: words in their place, so that a rollout goes on.

A document of plain text is read. Of everything else the model is told what it is and how large. The words depend on the
attachment alone, so that a later turn that has it again matches what was recorded.
"""

import base64
import binascii
import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from rolltap.types.chat import FilePart, ImagePart, Message, Part, TextPart

_DATA_URL = re.compile(r"data:(?P<type>[^;,]*)(?P<options>(?:;[^;,]*)*?)(?P<base64>;base64)?,", re.IGNORECASE)
_TEXT_TYPE = re.compile(
    r"text/|application/(.*\+)?(json|xml|yaml|toml|javascript|x-sh|x-yaml|sql)\b", re.IGNORECASE
)
_LONGEST_NAME = 200
"""Of an address or a file's name: a model needs to know no more of it."""


class InWords(NamedTuple):
    """Messages without attachments, and what was put into words."""

    messages: tuple[Message, ...]
    notes: dict[int, list[str]]
    """For the messages that had attachments, by their index: what each attachment became."""


def in_words(messages: Sequence[Message]) -> InWords:
    """The messages as a model can read them that knows text alone."""
    notes: dict[int, list[str]] = {}
    readable = [*messages]
    in_parts = [
        (at, message.content) for at, message in enumerate(messages) if type(message.content) is tuple
    ]
    for at, parts in in_parts:
        if not all(isinstance(part, TextPart) for part in parts):
            text, notes[at] = _text(parts)
            readable[at] = msgspec.structs.replace(readable[at], content=text)
    return InWords(tuple(readable), notes)


def _text(parts: Sequence[Part]) -> tuple[str, list[str]]:
    """One text of all parts, attachments on lines of their own; and what of it stands for attachments."""
    text = ""
    notes: list[str] = []
    was_attachment = False
    for part in parts:
        attachment = not isinstance(part, TextPart)
        words = part.text if isinstance(part, TextPart) else _words(part, notes)
        between = "\n" if (attachment or was_attachment) and text and not text.endswith("\n") else ""
        text += between + words
        was_attachment = attachment
    return text, notes


def _words(part: ImagePart | FilePart, notes: list[str]) -> str:
    """What stands for an attachment; what is said of it in the node is added to `notes`."""
    url = part.url
    found = _DATA_URL.match(url)
    media_type = (found["type"] if found else "") or getattr(part, "media_type", "")
    name = getattr(part, "name", "")[:_LONGEST_NAME]
    if found and _TEXT_TYPE.match(media_type):
        document = _decoded(url[found.end() :], is_base64=bool(found["base64"]))
        if document is not None:
            notes.append(f"{name or media_type} was read as text")
            return f"[{name}]\n{document}" if name else document
    kind = media_type or ("image" if isinstance(part, ImagePart) else "file")
    said = [name] if name else []
    said.append(kind)
    if found:
        said.append(f"{_size(url, found)} bytes")
    elif url or part.extra.get("file_id"):
        said.append(str(url or part.extra["file_id"])[:_LONGEST_NAME])
    described = ", ".join(said)
    notes.append(f"{described}: words stand for it, since this model reads text only")
    return f"[{described}: this model reads text only]"


def _decoded(data: str, *, is_base64: bool) -> str | None:
    """A document's text; None where it is not UTF-8 text after all."""
    try:
        return (base64.b64decode(data, validate=True) if is_base64 else unquote_to_bytes(data)).decode()
    except (binascii.Error, ValueError):
        return None


def _size(url: str, found: re.Match[str]) -> int:
    """How many bytes a `data:` URL holds."""
    if not found["base64"]:
        return len(unquote_to_bytes(url[found.end() :]))
    letters = len(url) - found.end()
    return letters * 3 // 4 - (url.endswith("=") + url.endswith("=="))
