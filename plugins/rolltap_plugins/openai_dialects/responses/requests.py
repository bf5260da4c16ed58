"""The request of the Responses API."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from rolltap import ChatRequest, Message
from rolltap_plugins.openai_dialects.responses.items import Item, history
from rolltap_plugins.openai_dialects.responses.tools import ResponsesState, Tool, function_tools
from rolltap_plugins.openai_dialects.tools import tool_choice
from rolltap_plugins.wire import read_body, refused, unnamed
from rolltap_plugins.wire.sampling import (
    CLIENT_FIELDS,
    AtLeastOne,
    NotNegative,
    SamplingFields,
    StreamOptions,
    sampling,
    told,
)
from rolltap_plugins.wire.sampling import UPSTREAM_FIELDS as COMMON_UPSTREAM_FIELDS

UPSTREAM_FIELDS = COMMON_UPSTREAM_FIELDS | {
    "access_programs",
    "background_options",
    "client_metadata",
    "context_management",
    "image",
    "max_tool_calls",
}
"""Fields that change no token here; `max_tool_calls` limits tools that the provider runs itself."""

_LOGPROBS = "message.output_text.logprobs"


class TextFormat(Struct, kw_only=True):
    """The form of the answer; flat, where Chat Completions has an object inside."""

    type: str = "text"
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class Text(Struct, kw_only=True):
    """How to write; `verbosity` is a hint that open models don't know."""

    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(Struct, kw_only=True):
    """How to think; thinking is never summarized here, but sent as it is."""

    effort: str | None = None
    summary: str | None = None


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
    tools, namespaces = function_tools(wire.tools or ())
    choice, allowed = tool_choice(wire.tool_choice, [tool["function"]["name"] for tool in tools])
    wire.response_format = _response_format(wire) or wire.response_format
    return ChatRequest(
        model=wire.model or "",
        messages=(*instructions, *history(wire.input)),
        tools=tuple(tool for tool in tools if tool["function"]["name"] in allowed),
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
        upstream=told(body, UPSTREAM_FIELDS),
        state=ResponsesState(namespaces=namespaces, reasoning=body.get("reasoning"), text=body.get("text")),
    )


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
