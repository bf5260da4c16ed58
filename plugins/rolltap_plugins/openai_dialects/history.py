"""The messages of a Chat Completions request."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from rolltap import Content, Message, Part, Role, ToolCall
from rolltap_plugins.openai_dialects.custom import as_arguments
from rolltap_plugins.openai_dialects.parts import audio_part, file_part, image_part, linked_part, text_part
from rolltap_plugins.wire import json_text, one_of, refused, unnamed

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",  # deprecated: the result of a `function_call`
}
PARTS = ("text", "image_url", "refusal", "input_audio", "file", "audio_url", "video_url")
"""The types of parts that are read here."""


class FunctionCall(Struct, kw_only=True):
    """A call's name and arguments; some clients send the arguments parsed."""

    name: str
    arguments: str | dict[str, Any] | None = None


class CustomCall(Struct, kw_only=True):
    """A call of a freeform tool."""

    name: str
    input: str = ""


class Call(Struct, kw_only=True):
    """One entry of an assistant's `tool_calls`. Some servers number their calls, so that ids may be integers."""

    id: str | int | None = None
    type: str = "function"
    function: FunctionCall | None = None
    custom: CustomCall | None = None


class WireMessage(Struct, kw_only=True):
    """A message as it stands in the body. Both names of reasoning are in use among servers."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[Call] | None = None
    function_call: FunctionCall | None = None
    tool_call_id: str | int | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    audio: dict[str, Any] | None = None


def history(messages: Sequence[WireMessage], raw: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The neutral messages of a body's, `raw` as they stand there: fields without a name here go on in `extra`.

    Raises `BadRequest` that names the message which can't be one.
    """
    return [
        _message(message, own, f"messages[{at}]")
        for at, (message, own) in enumerate(zip(messages, raw, strict=True))
    ]


def _message(wire: WireMessage, raw: Mapping[str, Any], where: str) -> Message:
    role = ROLES.get(wire.role)
    if role is None:
        raise refused(f"{where}.role", f"is {wire.role!r}; use {one_of(ROLES)}.")
    if wire.audio is not None:
        raise refused(f"{where}.audio", "is not supported: what was said is known to its provider alone.")
    content = _content(wire.content, where)
    extra = unnamed(raw, WireMessage.__struct_fields__)
    if role == "assistant":
        return _assistant(wire, raw, content, extra, where)
    if content is None:
        raise refused(f"{where}.content", "is missing.")
    return Message(
        role=role, content=content, name=wire.name, tool_call_id=call_id(wire.tool_call_id), extra=extra
    )


def _assistant(
    wire: WireMessage, raw: Mapping[str, Any], content: Content, extra: dict[str, Any], where: str
) -> Message:
    calls = [
        _call(call, raw["tool_calls"][at], f"{where}.tool_calls[{at}]")
        for at, call in enumerate(wire.tool_calls or ())
    ]
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
        extra=extra,
    )


def call_id(value: str | int | None) -> str | None:
    """A call's id as text."""
    return str(value) if isinstance(value, int) else value


def _content(value: str | list[dict[str, Any]] | None, where: str) -> Content:
    if value is None or isinstance(value, str):
        return value
    return tuple(_part(part, f"{where}.content[{at}]") for at, part in enumerate(value))


def _part(part: dict[str, Any], where: str) -> Part:
    match part.get("type"):
        case "text" | "refusal" as kind:
            return text_part(part, str(kind), where)
        case "image_url":
            return image_part(part, where)
        case "input_audio":
            return audio_part(part, where)
        case "file":
            return file_part(part, part.get("file"), f"{where}.file")
        case "audio_url" | "video_url" as kind:
            return linked_part(part, str(kind), where)
        case None:
            raise refused(f"{where}.type", "is missing.")
    raise refused(f"{where}.type", f"is {part['type']!r}; supported are {one_of(PARTS)}.")


def _call(call: Call, raw: Mapping[str, Any], where: str) -> ToolCall:
    extra = unnamed(raw, Call.__struct_fields__, ("index",))
    match call:
        case Call(type="function", function=FunctionCall() as function):
            beside = unnamed(raw["function"], FunctionCall.__struct_fields__)
            return _called(function, call_id(call.id) or "", extra | ({"function": beside} if beside else {}))
        case Call(type="custom", custom=CustomCall() as custom):
            arguments = as_arguments(custom.input)
            return ToolCall(name=custom.name, arguments=arguments, id=call_id(call.id) or "", extra=extra)
        case Call(type="function" | "custom"):
            raise refused(f"{where}.{call.type}", "is missing.")
    raise refused(f"{where}.type", f"is {call.type!r}; only function and custom calls are supported.")


def _called(function: FunctionCall, name: str = "", extra: Mapping[str, Any] | None = None) -> ToolCall:
    arguments = function.arguments
    if not isinstance(arguments, str):
        arguments = json_text(arguments or {})
    return ToolCall(name=function.name, arguments=arguments or "{}", id=name, extra=dict(extra or {}))
