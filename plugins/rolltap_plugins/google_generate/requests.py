"""A request in Google's form: `generateContent` and its siblings."""

import logging
from typing import Annotated, Any

from msgspec import Meta, Struct

from rolltap import ChatRequest, Message, Sampling, ToolChoice
from rolltap_plugins.google_generate.contents import (
    WireContent,
    WirePart,
    camel_keys,
    history,
    system_message,
)
from rolltap_plugins.google_generate.schemas import json_schema
from rolltap_plugins.wire import no_tool_works, read_body, refused, unnamed
from rolltap_plugins.wire.sampling import (
    AtLeastOne,
    Choices,
    NotNegative,
    Penalty,
    Probability,
    SamplingFields,
    Seed,
    sampling,
    told,
)

log = logging.getLogger(__name__)

CLIENT_FIELDS = frozenset({"labels", "safetySettings", "serviceTier", "store"})
"""Fields that change no token here: who asks, how to bill, what Google's own filters should let through."""

_OPAQUE = frozenset(
    {
        "args",
        "labels",
        "parameters",
        "parametersJsonSchema",
        "response",
        "responseJsonSchema",
        "responseSchema",
        "responseParametersJsonSchema",
    }
)
"""Under these stands the client's own JSON."""

_TELLING_NOTHING = frozenset(
    {"audioTimestamp", "enableEnhancedCivicAnswers", "mediaResolution", "speechConfig"}
)
"""Settings for other media than text."""

_LEVELS = {"MINIMAL": "minimal", "LOW": "low", "MEDIUM": "medium", "HIGH": "high"}


class State(Struct, frozen=True, kw_only=True):
    """What the reply must know of the request."""

    shows_thoughts: bool = False
    sse: bool = True
    """Whether a stream is one of server-sent events; else a JSON array."""


class Thinking(Struct, rename="camel", kw_only=True):
    """`thinkingConfig`: a budget of 0 means none; other budgets mean nothing to open models."""

    include_thoughts: bool | None = None
    thinking_budget: int | None = None
    thinking_level: str | None = None


class Generation(Struct, rename="camel", kw_only=True):
    """`generationConfig`."""

    max_output_tokens: AtLeastOne | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[float, Meta(ge=0)] | None = None
    seed: Seed | None = None
    stop_sequences: list[str] | None = None
    candidate_count: Choices | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    response_mime_type: str | None = None
    response_schema: dict[str, Any] | None = None
    response_json_schema: dict[str, Any] | None = None
    response_logprobs: bool | None = None
    logprobs: NotNegative | None = None
    response_modalities: list[str] | None = None
    thinking_config: Thinking | None = None


class Declaration(Struct, rename="camel", kw_only=True):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None


class Calling(Struct, rename="camel", kw_only=True):
    """`functionCallingConfig`."""

    mode: str | None = None
    allowed_function_names: list[str] | None = None


class ToolConfig(Struct, rename="camel", kw_only=True):
    """`toolConfig`."""

    function_calling_config: Calling | None = None


class GenerateBody(Struct, rename="camel", kw_only=True):
    """The request's body, with what stands in its path."""

    contents: str | WireContent | list[WireContent | str]
    model: str | None = None
    stream: bool | None = None
    alt: str | None = None
    system_instruction: str | WireContent | None = None
    tools: list[dict[str, Any]] | None = None
    tool_config: ToolConfig | None = None
    generation_config: dict[str, Any] | None = None
    cached_content: str | None = None


_NAMED = frozenset(GenerateBody.__struct_encode_fields__)


def decode(body: dict[str, Any]) -> ChatRequest:
    """The neutral request. Raises `BadRequest` that names a wrong field."""
    body = camel_keys(body, _OPAQUE)
    if isinstance(inner := body.pop("generateContentRequest", None), dict):  # as countTokens may have it
        body = {**inner, "model": body.get("model")}
    wire = read_body(body, GenerateBody)
    if wire.cached_content is not None:
        raise refused("cachedContent", "names what Google keeps; send the contents themselves.")
    config = read_body(wire.generation_config or {}, Generation)
    messages = history(_contents(wire.contents))
    if not messages:
        raise refused("contents", "must not be empty.")
    system = _system(wire.system_instruction)
    tools, choice = _tools_and_choice(wire)
    thinking = config.thinking_config or Thinking()
    last = messages[-1]
    begun = last.role == "assistant" and not last.tool_calls and bool(last.text)
    return ChatRequest(
        model=(wire.model or "").removeprefix("models/"),
        messages=((system, *messages) if system is not None else tuple(messages)),
        tools=tuple(tools),
        tool_choice=choice,
        sampling=_sampling(config, wire.generation_config or {}, body),
        template_kwargs={"enable_thinking": False} if thinking.thinking_budget == 0 else {},
        stream=bool(wire.stream),
        include_usage=True,
        continues=begun,
        client_fields=told(body, CLIENT_FIELDS),
        upstream=_effort(thinking),
        state=State(shows_thoughts=bool(thinking.include_thoughts), sse=wire.alt == "sse"),
    )


def _contents(contents: str | WireContent | list[WireContent | str]) -> list[WireContent]:
    given = contents if isinstance(contents, list) else [contents]
    return [WireContent(parts=[WirePart(text=one)]) if isinstance(one, str) else one for one in given]


def _system(instruction: str | WireContent | None) -> Message | None:
    if instruction is None:
        return None
    return system_message(_contents(instruction)[0], "systemInstruction")


def _effort(thinking: Thinking) -> dict[str, Any]:
    level = _LEVELS.get((thinking.thinking_level or "").upper())
    return {} if level is None else {"reasoning_effort": level}


def _sampling(config: Generation, given: dict[str, Any], body: dict[str, Any]) -> Sampling:
    if config.response_modalities and "TEXT" not in [word.upper() for word in config.response_modalities]:
        raise refused(
            "generationConfig.responseModalities", "must have TEXT: a model here writes nothing else."
        )
    fields = SamplingFields(
        n=config.candidate_count,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=None if config.top_k is None else int(config.top_k),
        seed=config.seed,
        stop=config.stop_sequences,
        presence_penalty=config.presence_penalty,
        frequency_penalty=config.frequency_penalty,
        response_format=_response_format(config),
    )
    unknown = unnamed(given, Generation.__struct_encode_fields__, _TELLING_NOTHING)
    return sampling(
        fields,
        max_tokens=config.max_output_tokens,
        top_logprobs=(config.logprobs or 0) if config.response_logprobs else None,
        extra=unknown | unnamed(body, _NAMED, CLIENT_FIELDS),
    )


def _response_format(config: Generation) -> dict[str, Any] | None:
    kind = config.response_mime_type or "text/plain"
    schema = config.response_json_schema
    if schema is None and config.response_schema is not None:
        schema = json_schema(config.response_schema)
    if kind == "text/x.enum" or schema is not None:
        return {"type": "json_schema", "json_schema": {"name": "output", "schema": schema or {}}}
    if kind == "application/json":
        return {"type": "json_object"}
    if kind != "text/plain":
        raise refused(
            "generationConfig.responseMimeType", f"is {kind!r}; use text/plain or application/json."
        )
    return None


def _tools_and_choice(wire: GenerateBody) -> tuple[list[dict[str, Any]], ToolChoice]:
    tools, left_out = [], []
    for at, tool in enumerate(wire.tools or ()):
        for kind, value in tool.items():
            if kind != "functionDeclarations":
                log.info("tool %r is left out: only Google's own servers can run it", kind)
                left_out.append(kind)
                continue
            if not isinstance(value, list):
                raise refused(f"tools[{at}].functionDeclarations", "must be an array.")
            tools += [_function(one, f"tools[{at}].functionDeclarations[{i}]") for i, one in enumerate(value)]
    if left_out and not tools:
        raise no_tool_works(left_out)
    calling = (wire.tool_config or ToolConfig()).function_calling_config or Calling()
    return _chosen(tools, calling)


def _function(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refused(where, "must be an object.")
    if not isinstance(value.get("name"), str):
        raise refused(f"{where}.name", "is missing." if value.get("name") is None else "must be text.")
    declared = read_body(value, Declaration)
    function: dict[str, Any] = {"name": declared.name}
    if declared.description is not None:
        function["description"] = declared.description
    if declared.parameters_json_schema is not None:
        function["parameters"] = declared.parameters_json_schema
    elif declared.parameters is not None:
        function["parameters"] = json_schema(declared.parameters)
    return {"type": "function", "function": function}


def _chosen(tools: list[dict[str, Any]], calling: Calling) -> tuple[list[dict[str, Any]], ToolChoice]:
    """The tools that may be called, and whether one must be."""
    where = "toolConfig.functionCallingConfig"
    mode = (calling.mode or "AUTO").upper()
    allowed = calling.allowed_function_names
    names = [tool["function"]["name"] for tool in tools]
    if unknown := [name for name in allowed or () if name not in names]:
        raise refused(
            f"{where}.allowedFunctionNames", f"has {unknown[0]!r}, which is no tool of the request."
        )
    match mode:
        case "AUTO" | "MODE_UNSPECIFIED" | "VALIDATED":
            return tools, ToolChoice()
        case "NONE":
            return tools, ToolChoice(mode="none")
        case "ANY" if not tools:
            raise refused(where, "asks for a call, but there is no tool that can be called.")
        case "ANY" if allowed and len(allowed) == 1:
            return tools, ToolChoice(mode="named", name=allowed[0])
        case "ANY":
            kept = [tool for tool in tools if not allowed or tool["function"]["name"] in allowed]
            return kept, ToolChoice(mode="required")
    raise refused(f"{where}.mode", f"is {calling.mode!r}; use AUTO, ANY or NONE.")
