"""The request of the Messages API."""

import logging
from typing import Annotated, Any

from msgspec import Meta, Struct

from rolltap import ChatRequest, Message, ReadBefore, ToolChoice
from rolltap_plugins.anthropic_messages.blocks import Block
from rolltap_plugins.anthropic_messages.history import WireMessage, conversation, history, system_content
from rolltap_plugins.wire import no_tool_works, read_body, refused, unnamed
from rolltap_plugins.wire.sampling import SamplingFields, sampling, told

log = logging.getLogger(__name__)

IN_PROCESS = "in process"
"""The `state` of requests whose callers are no HTTP clients."""

CLIENT_FIELDS = frozenset(
    {
        "anthropic_beta",
        "anthropic_version",
        "betas",
        "cache_control",
        "container",
        "context_management",
        "diagnostics",
        "inference_geo",
        "mcp_servers",
        "metadata",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)
"""Fields that change no token here: who asks, how to bill and cache, what Anthropic's own servers should trim or reach."""

_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""Anthropic's words for how hard to think, and those that every server with such a setting knows."""


class Tool(Struct, kw_only=True):
    """A tool. Those with a `type` of their own are Anthropic's, known to no other model; some have no name."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class Choice(Struct, kw_only=True):
    """The `tool_choice`."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct, kw_only=True):
    """Whether to think; a budget means nothing to open models."""

    type: str


class OutputConfig(Struct, kw_only=True):
    """How to answer: `effort` is a hint, `format` asks for JSON of a schema."""

    effort: str | None = None
    format: dict[str, Any] | None = None


class MessagesBody(SamplingFields, kw_only=True):
    """The request's body. `max_tokens` may be missing, as in no other server of this dialect."""

    messages: list[WireMessage]
    model: str | None = None
    system: str | list[str | Block] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    tools: list[Tool] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class CheckedBody(MessagesBody, kw_only=True):
    """The same, from a client: a conversation has a message."""

    messages: Annotated[list[WireMessage], Meta(min_length=1)]


def decode(
    body: dict[str, Any], *, may_be_empty: bool = False, before: ReadBefore | None = None
) -> ChatRequest:
    """The neutral request. Raises `BadRequest` that names a wrong field.

    :param may_be_empty: whether a request without any message is taken, as by callers that are no HTTP clients.
    :param before: what earlier requests were read as; an error then counts the messages from the first new one on.
    """
    known = before.known("messages", body.get("messages")) if before is not None else ()
    rest = {**body, "messages": body["messages"][len(known) :]} if known else body
    wire = read_body(rest, MessagesBody if may_be_empty or known else CheckedBody)
    if wire.n not in {None, 1}:
        raise refused("n", "must be 1: a message is one choice.")
    read = [*known, *history(wire.messages)]
    if before is not None:
        before.keep("messages", body["messages"], read)
    messages = conversation(read)
    if wire.system is not None and (system := system_content(wire.system)):
        messages.insert(0, Message(role="system", content=system))
    tools = _tools(wire.tools or [])
    if wire.output_config and wire.output_config.format:
        wire.response_format = _response_format(wire.output_config.format)
    if wire.stop_sequences:
        wire.stop = wire.stop_sequences
    return ChatRequest(
        model=wire.model or "",
        messages=tuple(messages),
        tools=tuple(tools),
        tool_choice=_tool_choice(wire.tool_choice, tools),
        parallel_tool_calls=_parallel(wire.tool_choice),
        sampling=sampling(
            wire,
            max_tokens=wire.max_tokens,
            top_logprobs=None,
            extra=unnamed(body, MessagesBody.__struct_fields__, CLIENT_FIELDS),
        ),
        template_kwargs=_template_kwargs(wire.thinking),
        stream=bool(wire.stream),
        include_usage=True,
        continues=_begins_the_answer(messages),
        client_fields=told(body, CLIENT_FIELDS),
        upstream=_upstream(wire.output_config),
        state=IN_PROCESS if may_be_empty else None,
    )


def _begins_the_answer(messages: list[Message]) -> bool:
    """Whether the last message is the beginning of an answer that the model is to go on from."""
    last = messages[-1] if messages else None
    return last is not None and last.role == "assistant" and not last.tool_calls and bool(last.text)


def _upstream(config: OutputConfig | None) -> dict[str, Any]:
    """The hint how hard to think, in the words of Chat Completions."""
    effort = _EFFORTS.get(config.effort or "") if config is not None else None
    return {} if effort is None else {"reasoning_effort": effort}


def _template_kwargs(thinking: Thinking | None) -> dict[str, Any]:
    """Thinking is switched only where the client says so; "adaptive" and the like leave it to the model."""
    match thinking:
        case Thinking(type="enabled"):
            return {"enable_thinking": True}
        case Thinking(type="disabled"):
            return {"enable_thinking": False}
    return {}


def _tools(tools: list[Tool]) -> list[dict[str, Any]]:
    """The tools in OpenAI's shape. Raises `BadRequest` where there are some, and none that a model here can call."""
    converted, left_out = [], []
    for at, tool in enumerate(tools):
        if tool.type not in {None, "custom"}:
            named = tool.name or tool.type or ""
            log.info("tool %r is left out: only Anthropic's own models know the type %r", named, tool.type)
            left_out.append(named)
            continue
        if tool.name is None:
            raise refused(f"tools[{at}].name", "is missing.")
        function: dict[str, Any] = {"name": tool.name}
        if tool.description is not None:
            function["description"] = tool.description
        if tool.input_schema is not None:
            function["parameters"] = tool.input_schema
        if tool.strict is not None:
            function["strict"] = tool.strict
        converted.append({"type": "function", "function": function})
    if left_out and not converted:
        raise no_tool_works(left_out)
    return converted


def _tool_choice(choice: Choice | None, tools: list[dict[str, Any]]) -> ToolChoice:
    match choice:
        case None | Choice(type="auto"):
            return ToolChoice()
        case Choice(type="none"):
            return ToolChoice(mode="none")
        case Choice(type="any"):
            if not tools:
                raise refused("tool_choice", "asks for a call, but there is no tool that can be called.")
            return ToolChoice(mode="required")
        case Choice(type="tool", name=str(name)):
            if name not in [tool["function"]["name"] for tool in tools]:
                raise refused("tool_choice.name", f"is {name!r}, which is no tool that can be called.")
            return ToolChoice(mode="named", name=name)
        case Choice(type="tool"):
            raise refused("tool_choice.name", "is missing.")
    raise refused("tool_choice.type", f"is {choice.type!r}; use auto, any, tool or none.")


def _parallel(choice: Choice | None) -> bool | None:
    if choice is None or choice.disable_parallel_tool_use is None:
        return None
    return not choice.disable_parallel_tool_use


def _response_format(value: dict[str, Any]) -> dict[str, Any]:
    schema = value.get("schema")
    if value.get("type") != "json_schema" or not isinstance(schema, dict):
        raise refused("output_config.format", "must have the type json_schema and an object `schema`.")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
