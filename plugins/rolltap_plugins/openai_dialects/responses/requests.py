"""The request of the Responses API."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from rolltap import ChatRequest, Message
from rolltap_plugins.openai_dialects.responses.items import Item, history
from rolltap_plugins.openai_dialects.responses.tools import ResponsesState, Tool, working_tools
from rolltap_plugins.openai_dialects.tools import tool_choice
from rolltap_plugins.wire import read_body, refused, unnamed
from rolltap_plugins.wire.sampling import CLIENT_FIELDS as COMMON_CLIENT_FIELDS
from rolltap_plugins.wire.sampling import (
    UPSTREAM_FIELDS,
    AtLeastOne,
    NotNegative,
    SamplingFields,
    StreamOptions,
    sampling,
    told,
)

CLIENT_FIELDS = COMMON_CLIENT_FIELDS | {
    "access_programs",
    "background_options",
    "client_metadata",
    "context_management",
    "image",
    "max_tool_calls",
}
"""Fields that change no token here; `max_tool_calls` limits tools that the provider runs itself."""

_ECHOED = (
    "frequency_penalty",
    "instructions",
    "max_tool_calls",
    "presence_penalty",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "text",
    "top_logprobs",
    "user",
)
"""What a reply says again as the client has sent it."""

_LOGPROBS = "message.output_text.logprobs"


class TextFormat(Struct, kw_only=True):
    """The form of the answer; flat, where Chat Completions has an object inside."""

    type: str = "text"
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class Text(Struct, kw_only=True):
    """How to write; `verbosity` is a hint that only OpenAI's own models know."""

    format: TextFormat | None = None
    verbosity: str | None = None


Summaries = Literal["auto", "concise", "detailed"]


class Reasoning(Struct, kw_only=True, forbid_unknown_fields=True):
    """How to think; thinking is never summarized here, but sent as it is."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Summaries | None = None
    generate_summary: Summaries | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: str | None = None


class ResponsesBody(SamplingFields, kw_only=True):
    """The request's body."""

    input: str | Annotated[list[Item], Meta(min_length=1)]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: AtLeastOne | None = None
    top_logprobs: NotNegative | None = None
    include: list[str] | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: Text | None = None
    reasoning: Reasoning | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    background: bool | None = None
    conversation: str | dict[str, Any] | None = None
    previous_response_id: str | None = None
    prompt: dict[str, Any] | None = None
    store: bool | None = None
    truncation: str | None = None


def decode(body: dict[str, Any]) -> ChatRequest:
    """The neutral request. Raises `BadRequest` that names a wrong field."""
    wire = read_body(body, ResponsesBody)
    _refuse_what_needs_a_provider(wire)
    instructions = [Message(role="system", content=wire.instructions)] if wire.instructions else []
    tools = working_tools(wire.tools or (), needed=wire.tool_choice != "none")
    names = [tool["function"]["name"] for tool in tools.functions]
    choice, allowed = tool_choice(wire.tool_choice, names)
    wire.response_format = _response_format(wire) or wire.response_format
    return ChatRequest(
        model=wire.model or "",
        messages=(*instructions, *history(wire.input, body["input"])),
        tools=tuple(tool for tool in tools.functions if tool["function"]["name"] in allowed),
        tool_choice=choice,
        parallel_tool_calls=wire.parallel_tool_calls,
        sampling=sampling(
            wire,
            max_tokens=wire.max_output_tokens or wire.max_tokens,
            top_logprobs=_top_logprobs(wire),
            extra=unnamed(body, ResponsesBody.__struct_fields__, CLIENT_FIELDS, UPSTREAM_FIELDS),
        ),
        template_kwargs=_template_kwargs(wire),
        stream=bool(wire.stream),
        include_usage=True,
        previous_id=wire.previous_response_id or None,
        keep=wire.store is not False,
        num_instructions=len(instructions),
        client_fields=told(body, CLIENT_FIELDS),
        upstream=_upstream(wire, body),
        state=ResponsesState(namespaces=tools.namespaces, freeform=tools.freeform, asked=told(body, _ECHOED)),
    )


def _upstream(wire: ResponsesBody, body: dict[str, Any]) -> dict[str, Any]:
    fields = told(body, UPSTREAM_FIELDS)
    if wire.text and wire.text.verbosity is not None:
        fields["verbosity"] = wire.text.verbosity
    return fields


def _refuse_what_needs_a_provider(wire: ResponsesBody) -> None:
    """What is kept or done at the provider between requests can't be had from a model alone."""
    if wire.n not in {None, 1}:
        raise refused("n", "must be 1: a response is one choice.")
    if wire.background:
        raise refused("background", "is not supported; leave it out and wait for the reply, or stream it.")
    if wire.conversation is not None:
        raise refused("conversation", "is not supported; send the whole input.")
    if wire.prompt is not None:
        raise refused("prompt", "is not supported; send the prompt's text in instructions or input.")
    if wire.stream_options and wire.stream_options.continuous_usage_stats:
        raise refused(
            "stream_options.continuous_usage_stats",
            "is not supported: the events of a response have no place for it.",
        )
    if wire.truncation not in {None, "disabled"}:
        raise refused("truncation", "must be disabled: nothing is cut from what a model is given.")


def _template_kwargs(wire: ResponsesBody) -> dict[str, Any]:
    kwargs = dict(wire.chat_template_kwargs or {})
    if wire.reasoning and wire.reasoning.effort is not None:
        kwargs["reasoning_effort"] = wire.reasoning.effort
    return kwargs


def _top_logprobs(wire: ResponsesBody) -> int | None:
    return 0 if wire.top_logprobs is None and _LOGPROBS in (wire.include or ()) else wire.top_logprobs


def _response_format(wire: ResponsesBody) -> dict[str, Any] | None:
    form = wire.text.format if wire.text else None
    if form is None:
        return None
    if form.type != "json_schema":
        return {"type": form.type}
    if form.schema is None:
        raise refused("text.format.schema", "is missing.")
    schema: dict[str, Any] = {"name": form.name or "output", "schema": form.schema}
    if form.strict is not None:
        schema["strict"] = form.strict
    return {"type": "json_schema", "json_schema": schema}
