"""Tools and tool choices of Chat Completions, freeform tools and the deprecated functions among them."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from rolltap import ToolChoice
from rolltap_plugins.openai_dialects.custom import as_function
from rolltap_plugins.wire import refused

MODES = ("none", "auto", "required")


class Function(Struct, kw_only=True):
    """What a function tool says of itself; checked only, the client's own object is what templates see."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Custom(Struct, kw_only=True):
    """What a freeform tool says of itself."""

    name: str
    description: str | None = None
    format: dict[str, Any] | None = None


class Tool(Struct, kw_only=True):
    """One entry of `tools`."""

    type: str = "function"
    function: Function | None = None
    custom: Custom | None = None


def function_tools(
    typed: Sequence[Tool] | None, tools: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], frozenset[str]]:
    """The client's `tools` as functions, and the names of those that are freeform: each must be one of the two."""
    converted: list[dict[str, Any]] = []
    freeform: set[str] = set()
    for at, (tool, own) in enumerate(zip(typed or (), tools, strict=True)):
        if tool.type == "custom":
            if tool.custom is None or not tool.custom.name:
                raise refused(f"tools[{at}].custom", "is missing or has no name.")
            freeform.add(tool.custom.name)
            converted.append(as_function(tool.custom.name, tool.custom.description, tool.custom.format))
            continue
        if tool.type != "function":
            raise refused(
                f"tools[{at}].type", f"is {tool.type!r}; only function and custom tools can be called here."
            )
        if tool.function is None or not tool.function.name:
            raise refused(f"tools[{at}].function", "is missing or has no name.")
        converted.append(own)
    return converted, frozenset(freeform)


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
    kind = value.get("type", "function") if isinstance(value, Mapping) else None
    if isinstance(value, Mapping) and kind in ("function", "custom"):
        function = value.get(kind, value)
        name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(name, str) and name:
            return name
    raise refused("tool_choice", "names no function.")
