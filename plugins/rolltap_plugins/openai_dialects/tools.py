"""Tools and tool choices of Chat Completions, the deprecated functions among them."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from rolltap import ToolChoice
from rolltap_plugins.wire import refused

MODES = ("none", "auto", "required")


class Function(Struct, kw_only=True):
    """What a function tool says of itself; checked only, the client's own object is what templates see."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, kw_only=True):
    """One entry of `tools`."""

    type: str = "function"
    function: Function | None = None


def function_tools(typed: Sequence[Tool] | None, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The client's `tools`, each of which must be a function."""
    for at, tool in enumerate(typed or ()):
        if tool.type != "function":
            raise refused(f"tools[{at}].type", f"is {tool.type!r}; only function tools can be called here.")
        if tool.function is None or not tool.function.name:
            raise refused(f"tools[{at}].function", "is missing or has no name.")
    return list(tools)


def tool_choice(value: str | Mapping[str, Any] | None, names: Sequence[str]) -> tuple[ToolChoice, set[str]]:
    """What `tool_choice` says, and which of the tools may be called. `names` are those of the request's tools."""
    allowed = set(names)
    if isinstance(value, Mapping) and value.get("type") == "allowed_tools":
        inner = value.get("allowed_tools", value)
        listed = inner.get("tools") if isinstance(inner, Mapping) else None
        if not isinstance(listed, list) or not listed:
            raise refused("tool_choice.allowed_tools.tools", "must be a list of tools.")
        allowed = {_named(entry) for entry in listed}
        value = str(inner.get("mode", "auto"))
    if value is None:
        return ToolChoice(), allowed
    if isinstance(value, str):
        choice = _mode(value)
    else:
        choice = ToolChoice(mode="named", name=_named(value))
        allowed |= {choice.name}
    if choice.mode == "required" and not names:
        raise refused("tool_choice", "asks for a call, but the request has no tools.")
    if unknown := allowed - set(names):
        raise refused("tool_choice", f"names {min(unknown)!r}, which is not among the request's tools.")
    return choice, allowed


def _mode(value: str) -> ToolChoice:
    match value:
        case "none" | "auto" | "required":
            return ToolChoice(mode=value)
        case _:
            raise refused("tool_choice", f"is {value!r}; use none, auto, required or a function.")


def _named(value: Any) -> str:
    """The name in `{"type": "function", "function": {"name": …}}`, or in its flat and deprecated forms."""
    if isinstance(value, Mapping) and value.get("type", "function") == "function":
        function = value.get("function", value)
        name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(name, str) and name:
            return name
    raise refused("tool_choice", "names no function.")
