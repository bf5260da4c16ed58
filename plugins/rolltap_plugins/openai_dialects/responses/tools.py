"""Tools of the Responses API: functions and freeform ones, some in namespaces; the provider's own are left out."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from rolltap import ChatRequest
from rolltap_plugins.openai_dialects.custom import as_function
from rolltap_plugins.wire import refused

log = logging.getLogger(__name__)


class ResponsesState(Struct, frozen=True, kw_only=True):
    """What the reply must know of the request's form."""

    namespaces: dict[str, str] = {}
    """The namespace that a tool came in, by its name."""
    freeform: dict[str, dict[str, Any]] = {}
    """The freeform tools as the client sent them, by their names."""
    asked: dict[str, Any] = {}
    """What the reply says again of the request."""


def state_of(request: ChatRequest) -> ResponsesState:
    """The state that the request was decoded with; an empty one for a request that was not decoded here."""
    return request.state if isinstance(request.state, ResponsesState) else ResponsesState()


class Tool(Struct, kw_only=True):
    """One entry of `tools`."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None
    tools: "list[Tool] | None" = None


class Tools(NamedTuple):
    """A request's tools, sorted out."""

    functions: list[dict[str, Any]]
    """In Chat Completions' shape, freeform ones as functions of one string."""
    namespaces: dict[str, str]
    """The namespace of each that has one, by its name."""
    freeform: dict[str, dict[str, Any]]
    """The freeform ones as the client wrote them, by their names."""


def working_tools(tools: Sequence[Tool], *, needed: bool) -> Tools:
    """The tools that work with any model. The others are left out, with a line in the log.

    Models know no namespaces: a tool whose name is taken already is left out too. Raises `BadRequest` where tools are
    `needed` and none is left: the model would make up what they were to find out.
    """
    converted: dict[str, dict[str, Any]] = {}
    namespaces: dict[str, str] = {}
    freeform: dict[str, dict[str, Any]] = {}
    for where, namespace, tool in _flat(tools):
        if tool.type not in {"function", "custom"}:
            log.info("%s is left out: the type %r is known to OpenAI's own models only", where, tool.type)
            continue
        if not tool.name:
            raise refused(f"{where}.name", "is missing.")
        if tool.name in converted:
            log.info("%s is left out: there is another function %r before it", where, tool.name)
            continue
        if tool.type == "custom":
            converted[tool.name] = as_function(tool.name, tool.description, tool.format)
            freeform[tool.name] = _custom(tool)
        else:
            converted[tool.name] = {"type": "function", "function": _function(tool)}
        if namespace:
            namespaces[tool.name] = namespace
    if needed and tools and not converted:
        names = ", ".join(dict.fromkeys(tool.name or tool.type for _, _, tool in _flat(tools)))
        raise refused(
            "tools",
            f"has none that works here: {names or 'an empty namespace'} is its provider's own. Send functions.",
        )
    return Tools(list(converted.values()), namespaces, freeform)


def _flat(tools: Sequence[Tool]) -> Iterator[tuple[str, str, Tool]]:
    """Each tool with its place and its namespace, "" for none."""
    for at, tool in enumerate(tools):
        if tool.type == "namespace":
            for inner_at, inner in enumerate(tool.tools or ()):
                yield f"tools[{at}].tools[{inner_at}]", tool.name or "", inner
        else:
            yield f"tools[{at}]", "", tool


def _function(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    if tool.strict is not None:
        function["strict"] = tool.strict
    return function


def _custom(tool: Tool) -> dict[str, Any]:
    said = {"name": tool.name, "description": tool.description, "format": tool.format}
    return {"type": "custom", **{name: value for name, value in said.items() if value is not None}}


def echoed_tools(request: ChatRequest) -> list[dict[str, Any]]:
    """The request's tools as a reply shows them: flat, functions with the keys that the SDK's type requires."""
    freeform = state_of(request).freeform
    return [
        freeform.get(tool["function"]["name"])
        or {"type": "function", "parameters": None, "strict": None, **tool["function"]}
        for tool in request.tools
    ]


def echoed_choice(request: ChatRequest) -> str | dict[str, str]:
    """The request's tool choice as a reply shows it."""
    choice = request.tool_choice
    if choice.mode != "named":
        return choice.mode
    kind = "custom" if choice.name in state_of(request).freeform else "function"
    return {"type": kind, "name": choice.name}
