"""any-llm's values as plain ones."""

from typing import Any


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
