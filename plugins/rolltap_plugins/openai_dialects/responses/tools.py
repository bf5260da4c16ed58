"""Tools of the Responses API: functions, some of them in namespaces; the provider's own are left out."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from rolltap import ChatRequest
from rolltap_plugins.wire import refused

log = logging.getLogger(__name__)


class ResponsesState(Struct, frozen=True, kw_only=True):
    """What the reply must know of the request's form."""

    namespaces: dict[str, str] = {}
    """The namespace that a function came in, by its name."""
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None


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
    tools: "list[Tool] | None" = None


def function_tools(tools: Sequence[Tool]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The functions in Chat Completions' shape, and the namespace of each that has one.

    Models know no namespaces: a function whose name is taken already is left out, as other tools are, with a line
    in the log.
    """
    converted: dict[str, dict[str, Any]] = {}
    namespaces: dict[str, str] = {}
    for where, namespace, tool in _flat(tools):
        if tool.type != "function":
            log.info("%s is left out: the type %r is known to OpenAI's own models only", where, tool.type)
            continue
        if not tool.name:
            raise refused(f"{where}.name", "is missing.")
        if tool.name in converted:
            log.info("%s is left out: there is another function %r before it", where, tool.name)
            continue
        converted[tool.name] = {"type": "function", "function": _function(tool)}
        if namespace:
            namespaces[tool.name] = namespace
    return list(converted.values()), namespaces


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


def echoed_tools(request: ChatRequest) -> list[dict[str, Any]]:
    """The request's functions as a reply shows them: flat, with the keys that the SDK's type requires."""
    return [
        {"type": "function", "parameters": None, "strict": None, **tool["function"]} for tool in request.tools
    ]


def echoed_choice(request: ChatRequest) -> str | dict[str, str]:
    """The request's tool choice as a reply shows it."""
    choice = request.tool_choice
    return {"type": "function", "name": choice.name} if choice.mode == "named" else choice.mode
