"""Pieces of content that OpenAI's dialects share: images, documents and recordings, with all that is said of them."""

import mimetypes
import re
from collections.abc import Mapping
from typing import Any

from rolltap import FilePart, ImagePart, TextPart
from rolltap_plugins.wire import refused, unnamed

_DATA_URL = re.compile(r"data:([^;,]*)", re.IGNORECASE)
_URL = re.compile(r"(?:data|https?|file|gs|s3):", re.IGNORECASE)

_AUDIO_TYPES = {"mp3": "audio/mpeg"}
"""Formats whose media type has another name."""


def text_part(part: Mapping[str, Any], field: str, where: str) -> TextPart:
    """A text, with what stands beside it, such as `cache_control`."""
    text = part.get(field)
    if not isinstance(text, str):
        raise refused(f"{where}.{field}", "is missing." if text is None else "must be text.")
    return TextPart(text, extra=unnamed(part, ("type", "text", field)))


def image_part(part: Mapping[str, Any], where: str) -> ImagePart:
    """An image by its URL, which stands in an object or alone; `detail` and the like are kept."""
    inner = part.get("image_url")
    beside = unnamed(part, ("type", "image_url"))
    if isinstance(inner, str):
        return ImagePart(inner, extra=beside)
    if not isinstance(inner, Mapping):
        raise refused(
            f"{where}.image_url", "is missing." if inner is None else "must be an object with a url."
        )
    url = _text(inner, "url", f"{where}.image_url")
    return ImagePart(url, extra=unnamed(inner, ("url",)) | beside)


def file_part(part: Mapping[str, Any], inner: Any, where: str) -> FilePart:
    """A document: its data, an address, or an id that the upstream knows it by. `inner` is what holds these fields."""
    if not isinstance(inner, Mapping):
        raise refused(where, "is missing." if inner is None else "must be an object.")
    name = _text(inner, "filename", where, default="")
    url = _text(inner, "file_data", where, default="") or _text(inner, "file_url", where, default="")
    known = ("type", "file", "filename", "file_data", "file_url")
    extra = unnamed(inner, known) | unnamed(part, known)
    if not url and not extra.get("file_id"):
        raise refused(f"{where}.file_data", "is missing: send the file's data, a file_url or a file_id.")
    media_type = _media_type(url, name)
    if url and not _URL.match(url):
        url = f"data:{media_type or 'application/octet-stream'};base64,{url}"
    return FilePart(media_type=media_type, url=url, name=name, extra=extra)


def audio_part(part: Mapping[str, Any], where: str) -> FilePart:
    """A recording: base64, and the name of its format."""
    inner = part.get("input_audio")
    if not isinstance(inner, Mapping):
        raise refused(f"{where}.input_audio", "is missing." if inner is None else "must be an object.")
    where = f"{where}.input_audio"
    data, form = _text(inner, "data", where), _text(inner, "format", where)
    media_type = _AUDIO_TYPES.get(form, f"audio/{form}")
    extra = unnamed(inner, ("data", "format")) | unnamed(part, ("type", "input_audio"))
    return FilePart(media_type=media_type, url=f"data:{media_type};base64,{data}", extra=extra)


def linked_part(part: Mapping[str, Any], kind: str, where: str) -> FilePart:
    """A recording or a film by its URL, as vLLM takes them: `kind` is "audio_url" or "video_url"."""
    inner = part.get(kind)
    if not isinstance(inner, Mapping):
        raise refused(f"{where}.{kind}", "is missing." if inner is None else "must be an object with a url.")
    url = _text(inner, "url", f"{where}.{kind}")
    media_type = _media_type(url, "") or f"{kind.removesuffix('_url')}/*"
    return FilePart(
        media_type=media_type, url=url, extra=unnamed(inner, ("url",)) | unnamed(part, ("type", kind))
    )


def _media_type(url: str, name: str) -> str:
    """What the URL says, else what the name's ending says; "" where neither says anything."""
    said = _DATA_URL.match(url)
    if said and said[1]:
        return said[1].lower()
    return mimetypes.guess_type(name)[0] or mimetypes.guess_type(url.partition("?")[0])[0] or ""


def _text(fields: Mapping[str, Any], name: str, where: str, *, default: str | None = None) -> str:
    value = fields.get(name, default)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise refused(f"{where}.{name}", "is missing." if value is None else "must be text.")
    return value
