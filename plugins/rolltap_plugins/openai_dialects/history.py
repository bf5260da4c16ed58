"""The messages of a Chat Completions request."""

from typing import Any

from msgspec import Struct

from rolltap import Content, ImagePart, Message, Role, TextPart, ToolCall
from rolltap_plugins.wire import json_text, one_of, refused

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",  # deprecated: the result of a `function_call`
}
PARTS = ("text", "image_url", "refusal")


class ImageUrl(Struct):
    """Where an image is; its `detail` means nothing to open models."""

    url: str


class Part(Struct, kw_only=True):
    """A piece of content."""

    type: str
    text: str | None = None
    image_url: ImageUrl | str | None = None
    refusal: str | None = None


class FunctionCall(Struct, kw_only=True):
    """A call's name and arguments; some clients send the arguments parsed."""

    name: str
    arguments: str | dict[str, Any] | None = None


class Call(Struct, kw_only=True):
    """One entry of an assistant's `tool_calls`."""

    id: str | None = None
    type: str = "function"
    function: FunctionCall | None = None


class WireMessage(Struct, kw_only=True):
    """A message as it stands in the body. Both names of reasoning are in use among servers."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[Call] | None = None
    function_call: FunctionCall | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    audio: dict[str, Any] | None = None


def history(messages: list[WireMessage]) -> list[Message]:
    """The neutral messages. Raises `BadRequest` that names the message which can't be one."""
    return [_message(message, f"messages[{at}]") for at, message in enumerate(messages)]


def _message(wire: WireMessage, where: str) -> Message:
    role = ROLES.get(wire.role)
    if role is None:
        raise refused(f"{where}.role", f"is {wire.role!r}; use {one_of(ROLES)}.")
    if wire.audio is not None:
        raise refused(f"{where}.audio", "is not supported: audio can't be sent to a model here.")
    content = _content(wire.content, where)
    if role == "assistant":
        return _assistant(wire, content, where)
    if content is None:
        raise refused(f"{where}.content", "is missing.")
    return Message(role=role, content=content, name=wire.name, tool_call_id=wire.tool_call_id)


def _assistant(wire: WireMessage, content: Content, where: str) -> Message:
    calls = [_call(call, f"{where}.tool_calls[{at}]") for at, call in enumerate(wire.tool_calls or ())]
    if not calls and wire.function_call is not None:
        calls = [_called(wire.function_call)]
    if content is None and wire.refusal:
        content = wire.refusal
    return Message(
        role="assistant",
        content=content,
        reasoning=wire.reasoning or wire.reasoning_content or None,
        tool_calls=tuple(calls),
        name=wire.name,
    )


def _content(value: str | list[Part] | None, where: str) -> Content:
    if value is None or isinstance(value, str):
        return value
    return tuple(_part(part, f"{where}.content[{at}]") for at, part in enumerate(value))


def _part(part: Part, where: str) -> TextPart | ImagePart:
    match part:
        case Part(type="text", text=str(text)) | Part(type="refusal", refusal=str(text)):
            return TextPart(text)
        case Part(type="image_url", image_url=ImageUrl(url=url)) | Part(type="image_url", image_url=str(url)):
            return ImagePart(url)
        case _ if part.type in PARTS:
            raise refused(f"{where}.{part.type}", "is missing.")
    raise refused(f"{where}.type", f"is {part.type!r}; supported are {one_of(PARTS)}.")


def _call(call: Call, where: str) -> ToolCall:
    if call.type != "function":
        raise refused(f"{where}.type", f"is {call.type!r}; only function calls are supported.")
    if call.function is None:
        raise refused(f"{where}.function", "is missing.")
    return _called(call.function, call.id or "")


def _called(function: FunctionCall, call_id: str = "") -> ToolCall:
    arguments = function.arguments
    if not isinstance(arguments, str):
        arguments = json_text(arguments or {})
    return ToolCall(name=function.name, arguments=arguments or "{}", id=call_id)
