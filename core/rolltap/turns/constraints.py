"""Tool choices that a token backend must be forced to: sent to the engine as structured outputs."""

from typing import Any

import msgspec

from rolltap.backend_handle import BackendHandle
from rolltap.errors import BadRequest
from rolltap.types.chat import ChatRequest


def constrained(request: ChatRequest, handle: BackendHandle) -> ChatRequest:
    """The request with a `response_format` that makes the model call, where its `tool_choice` demands a call.

    "required" becomes an array of calls, a named tool the object of its arguments; the reader knows both. A form that
    the client wants for its answer gives way: a call is no answer yet. Raises
    `BadRequest` where there is no such tool, or the backend has no structured outputs.
    """
    choice = request.tool_choice
    if choice.mode not in {"required", "named"}:
        return request
    functions = {tool["function"]["name"]: tool["function"] for tool in request.tools if "function" in tool}
    if not functions:
        raise BadRequest(
            f"tool_choice demands a call ({choice.mode}), but there are no tools", param="tool_choice"
        )
    if choice.mode == "named" and choice.name not in functions:
        raise BadRequest(
            f"tool_choice names {choice.name!r}; the tools are {', '.join(functions)}", param="tool_choice"
        )
    takes = handle.backend.parameters
    if takes is not None and "response_format" not in takes:
        raise BadRequest(
            f"backend {handle.name} of model {handle.model!r} has no structured outputs, so it can't be made to call a "
            'tool; use tool_choice "auto"',
            param="tool_choice",
        )
    schema = _arguments(functions[choice.name]) if choice.mode == "named" else _calls(request, functions)
    wanted = {"type": "json_schema", "json_schema": {"name": "tool_calls", "schema": schema}}
    sampling = msgspec.structs.replace(request.sampling, response_format=wanted)
    return msgspec.structs.replace(request, sampling=sampling)


def _arguments(function: dict[str, Any]) -> dict[str, Any]:
    return function.get("parameters") or {"type": "object", "properties": {}}


def _calls(request: ChatRequest, functions: dict[str, dict[str, Any]]) -> dict[str, Any]:
    one = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "parameters": _arguments(function)},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for name, function in functions.items()
    ]
    most = {"maxItems": 1} if request.parallel_tool_calls is False else {}
    return {"type": "array", "minItems": 1, **most, "items": one[0] if len(one) == 1 else {"anyOf": one}}
