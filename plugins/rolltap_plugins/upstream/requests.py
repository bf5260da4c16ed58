"""A request as a client of Chat Completions writes it."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from rolltap import (
    ChatRequest,
    Content,
    FilePart,
    ImagePart,
    Message,
    Part,
    Sampling,
    TextPart,
    ToolCall,
    ToolChoice,
)
from rolltap_plugins.upstream.systems import Systems, placed

_SPECIAL = frozenset({"extra", "logit_bias", "max_tokens", "n", "top_logprobs"})
_PLAIN = tuple(name for name in Sampling.__struct_fields__ if name not in _SPECIAL)
"""Sampling parameters that go as they are."""

_OPENAI_ONLY = ("safety_identifier", "store")
"""What a client says that changes no token, as far as only OpenAI's own service has a use for it."""
_HINTS = frozenset({"verbosity"})
"""Hints among the fields to pass on which only OpenAI's own models know; others refuse them."""
_INSIDE_IMAGE = frozenset({"detail", "format"})
_INSIDE_FILE = frozenset({"file_id", "format"})
"""What of a part's further fields stands inside its object; the rest, such as `cache_control`, stands beside it."""
_AUDIO_FORMATS = {"mpeg": "mp3"}


class Style(Struct, frozen=True, kw_only=True):
    """In what upstreams differ."""

    max_tokens: str = "max_tokens"
    """What the limit of generated tokens is called."""
    reasoning: str = ""
    """The field of an assistant's message that past thinking goes into; "": it is left out."""
    template_kwargs: bool = True
    """Whether there is a chat template that takes variables."""
    openai: bool = False
    """Whether it is OpenAI's own service, or keeps to all that it has."""
    stream_usage: bool = True
    """Whether a stream may be asked to report usage."""
    developer: bool = False
    """Whether it takes messages of the role "developer"; else they are system ones."""
    systems: Systems = "first"
    """Where it takes system messages."""
    number_ids: bool = False
    """Whether its own ids of calls are integers, which it wants back as such."""


def chat_body(request: ChatRequest, model: str, style: Style) -> dict[str, Any]:
    """The whole body. Parameters that rolltap has no name for stand in it as the client sent them."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [
            _message(message, style)
            for message in placed(request.messages, style.systems, developer=style.developer)
        ],
    }
    if request.stream:
        body["stream"] = True
        if style.stream_usage:
            body["stream_options"] = {"include_usage": True}
    if request.tools:
        body |= _tools(request)
    body |= _sampling(request.sampling, style)
    if request.template_kwargs:
        body |= _template_kwargs(request.template_kwargs, style)
    told = ("user", *_OPENAI_ONLY) if style.openai else ("user",)
    if style.openai and request.client_fields.get("store"):  # OpenAI refuses them for what it does not store
        told = (*told, "metadata")
    body |= {name: request.client_fields[name] for name in told if name in request.client_fields}
    body |= {name: value for name, value in request.upstream.items() if style.openai or name not in _HINTS}
    return body | request.sampling.extra


def _tools(request: ChatRequest) -> dict[str, Any]:
    body: dict[str, Any] = {"tools": request.tools}
    if request.tool_choice != ToolChoice():
        body["tool_choice"] = _tool_choice(request.tool_choice)
    if request.parallel_tool_calls is not None:
        body["parallel_tool_calls"] = request.parallel_tool_calls
    return body


def _tool_choice(choice: ToolChoice) -> str | dict[str, Any]:
    if choice.mode == "named":
        return {"type": "function", "function": {"name": choice.name}}
    return choice.mode


def _sampling(sampling: Sampling, style: Style) -> dict[str, Any]:
    body = {name: value for name in _PLAIN if (value := getattr(sampling, name)) is not None}
    if sampling.n != 1:
        body["n"] = sampling.n
    if sampling.max_tokens is not None:
        body[style.max_tokens] = sampling.max_tokens
    if sampling.logit_bias is not None:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if sampling.top_logprobs is not None:
        body["logprobs"] = True
        if sampling.top_logprobs:
            body["top_logprobs"] = sampling.top_logprobs
    return body


def _template_kwargs(kwargs: dict[str, Any], style: Style) -> dict[str, Any]:
    body = {name: value for name, value in kwargs.items() if name == "reasoning_effort"}
    others = {name: value for name, value in kwargs.items() if name != "reasoning_effort"}
    if others and style.template_kwargs:
        body["chat_template_kwargs"] = others
    return body


def _message(message: Message, style: Style) -> dict[str, Any]:
    body: dict[str, Any] = {
        **message.extra,
        "role": message.role,
        "content": _content(message.content),
    }
    if message.name is not None:
        body["name"] = message.name
    if message.tool_call_id is not None:
        body["tool_call_id"] = _id(message.tool_call_id, style)
    if message.role == "assistant":
        if message.tool_calls:
            body["tool_calls"] = [_call(call, style) for call in message.tool_calls]
        elif body["content"] is None:
            body["content"] = ""
        if message.reasoning and style.reasoning:
            body[style.reasoning] = message.reasoning
    return body


def _content(content: Content) -> str | list[dict[str, Any]] | None:
    if content is None or isinstance(content, str):
        return content
    return [_part(part) for part in content]


def _part(part: Part) -> dict[str, Any]:
    match part:
        case TextPart():
            return {**part.extra, "type": "text", "text": part.text}
        case ImagePart():
            inside, beside = _split(part.extra, _INSIDE_IMAGE)
            return {**beside, "type": "image_url", "image_url": {**inside, "url": part.url}}
        case FilePart():
            return _file(part)


def _file(part: FilePart) -> dict[str, Any]:
    """A document, a recording or a film, each in the form that servers know it by."""
    kind, _, form = part.media_type.partition("/")
    if kind == "audio" and part.url.startswith("data:") and not part.name:
        data = part.url.partition(",")[2]
        audio = {"data": data, "format": _AUDIO_FORMATS.get(form, form)}
        return {**part.extra, "type": "input_audio", "input_audio": audio}
    if kind in {"audio", "video"} and not part.name:
        return {**part.extra, "type": f"{kind}_url", f"{kind}_url": {"url": part.url}}
    inside, beside = _split(part.extra, _INSIDE_FILE)
    named = {"filename": part.name, "file_data": part.url}
    return {
        **beside,
        "type": "file",
        "file": {**inside, **{name: value for name, value in named.items() if value}},
    }


def _split(extra: Mapping[str, Any], inside: frozenset[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The further fields that stand inside a part's object, and those beside it."""
    within = {name: value for name, value in extra.items() if name in inside}
    return within, {name: value for name, value in extra.items() if name not in inside}


def _call(call: ToolCall, style: Style) -> dict[str, Any]:
    function = {**call.extra.get("function", {}), "name": call.name, "arguments": call.arguments}
    return {**call.extra, "id": _id(call.id, style), "type": "function", "function": function}


def _id(name: str, style: Style) -> str | int:
    """A call's id in the upstream's form."""
    return int(name) if style.number_ids and name.isascii() and name.isdigit() else name
