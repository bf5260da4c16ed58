"""Tool calls written as JSON, as most formats write them."""

import re
from typing import Any

from rolltap.parsing.json_text import as_json, members
from rolltap.types.chat import ToolCall

_NAME_KEYS = ("name", "function", "tool_name", "tool")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character, of an escape such as `\\ud83d` that came alone: text with it can't be sent."""
_OTHER_KEYS = frozenset({"id", "call_id", "tool_call_id", "index", "type"})
"""What may stand beside the name of a call without arguments. Any other key could be an argument out of place."""


def calls_from_json(text: str) -> list[ToolCall] | None:
    """The calls that a JSON text is: an object with `name` and `arguments`, or an array of such; None for all else.

    Takes what models write for these: the keys in any order, `parameters` for `arguments`, no arguments at all,
    arguments that are JSON inside a string, OpenAI's `{"type": "function", "function": {…}}`, and text that `as_json`
    repairs. The arguments are the model's own text wherever that is JSON.
    """
    try:
        text, value = as_json(text)
    except ValueError:
        return None
    if isinstance(value, dict):
        call = _call(text)
        return None if call is None else [call]
    if not isinstance(value, list):
        return None
    calls = [_call(raw) if isinstance(item, dict) else None for _, item, raw in members(text)]
    whole = [call for call in calls if call is not None]
    return whole if whole and len(whole) == len(calls) else None


def arguments_from_json(text: str) -> str | None:
    """A call's arguments as JSON text, of whatever JSON the model wrote in their place; None where it is no object.

    An object stays as it is written; one inside a string is taken out of it; null, `[]` and "" are no arguments.
    """
    try:
        text, value = as_json(text)
    except ValueError:
        return None
    while isinstance(value, str) and value.strip():
        try:
            text, value = as_json(value.strip())
        except ValueError:
            return None
    if isinstance(value, dict):
        return _SURROGATE.sub(lambda half: f"\\u{ord(half.group()):04x}", text)
    empty = value is None or value == [] or (isinstance(value, str) and not value.strip())
    return "{}" if empty else None


def _call(text: str) -> ToolCall | None:
    """The call that one object is."""
    found: dict[str, tuple[Any, str]] = {key: (value, raw) for key, value, raw in members(text)}
    nested = found.get("function")
    if "name" not in found and nested is not None and isinstance(nested[0], dict):
        return _call(nested[1])
    name_key = next((key for key in _NAME_KEYS if key in found), None)
    name = found.pop(name_key)[0] if name_key else None
    if not isinstance(name, str) or not name or _SURROGATE.search(name):
        return None
    for key in _ARGUMENT_KEYS:
        if key in found:
            arguments = arguments_from_json(found[key][1])
            return None if arguments is None else ToolCall(name, arguments)
    return ToolCall(name) if _OTHER_KEYS.issuperset(found) else None
