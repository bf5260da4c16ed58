"""A request as a client of Chat Completions writes it."""

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
from rolltap_plugins.upstream.roles import placed

_SPECIAL = frozenset({"extra", "logit_bias", "max_tokens", "n", "top_logprobs"})
_PLAIN = tuple(name for name in Sampling.__struct_fields__ if name not in _SPECIAL)
"""Sampling parameters that go as they are."""

_EVERYWHERE = ("prediction", "user")
_OPENAI_ONLY = (
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
)
"""What a client says that changes no token, as far as the upstream has a use for it."""


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
    systems: str = ""
    """Where it takes system messages: "first" or "anywhere"; "": first alone, but OpenAI's own service anywhere."""
    developer: bool | None = None
    """Whether it knows the role "developer"; None: OpenAI's own service alone does."""


def chat_body(request: ChatRequest, model: str, style: Style) -> dict[str, Any]:
    """The whole body. Parameters that rolltap has no name for stand in it as the client sent them."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(message, style) for message in _placed(request, style)],
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
    for fields in (request.client_fields, request.upstream):
        names = (*_EVERYWHERE, *_OPENAI_ONLY) if style.openai else _EVERYWHERE
        body |= {name: fields[name] for name in names if name in fields}
    return body | request.sampling.extra


def _placed(request: ChatRequest, style: Style) -> list[Message]:
    return placed(
        request.messages,
        systems=style.systems or ("anywhere" if style.openai else "first"),
        developer=style.openai if style.developer is None else style.developer,
    )


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
    body: dict[str, Any] = {"role": message.role, "content": _content(message.content)}
    if message.name is not None:
        body["name"] = message.name
    if message.tool_call_id is not None:
        body["tool_call_id"] = message.tool_call_id
    if message.role == "assistant":
        if message.tool_calls:
            body["tool_calls"] = [_call(call) for call in message.tool_calls]
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
            return {"type": "image_url", "image_url": {**part.extra, "url": part.url}}
        case FilePart():
            return {"type": "file", "file": {**part.extra, "filename": part.name, "file_data": part.url}}


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
