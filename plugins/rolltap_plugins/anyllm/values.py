"""any-llm's values as plain ones."""

from collections.abc import Mapping
from typing import Any

from rolltap_plugins.upstream.errors import unreadable


def reply_fields(value: Any) -> Mapping[str, Any]:
    """A reply or a chunk as a dict. Raises `UpstreamError` for a value that is none."""
    try:
        fields = plain(value)
    except TypeError as error:
        raise unreadable("", error) from error
    if not isinstance(fields, dict):
        raise unreadable("", f"it is a {type(value).__name__}, and no object")
    return fields


def plain(value: Any) -> Any:
    """A reply or a chunk as dicts and lists: pydantic's models dumped, other objects by their attributes."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "model_dump"):
        return value.model_dump(exclude_none=True, warnings=False)
    return {name: plain(item) for name, item in vars(value).items()}
