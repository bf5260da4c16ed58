"""Messages in the form of OpenAI's Chat Completions, which trainers and viewers read."""

from typing import Any

from rolltap.types.chat import FilePart, ImagePart, Message, Part, TextPart, ToolCall


def as_openai(message: Message) -> dict[str, Any]:
    """The message as a client of Chat Completions would write it; thinking is `reasoning_content`."""
    body: dict[str, Any] = {**message.extra, "role": message.role, "content": _content(message)}
    if message.reasoning:
        body["reasoning_content"] = message.reasoning
    if message.tool_calls:
        body["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        body["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        body["name"] = message.name
    return body


def _content(message: Message) -> str | list[dict[str, Any]] | None:
    if message.content is None or isinstance(message.content, str):
        return message.content or (None if message.tool_calls else "")
    return [_part(part) for part in message.content]


def _part(part: Part) -> dict[str, Any]:
    match part:
        case TextPart():
            return {**part.extra, "type": "text", "text": part.text}
        case ImagePart():
            return {"type": "image_url", "image_url": {**part.extra, "url": part.url}}
        case FilePart():
            return {"type": "file", "file": {**part.extra, **_file(part)}}


def _file(part: FilePart) -> dict[str, str]:
    fields = {"filename": part.name, "file_data": part.url, "media_type": part.media_type}
    return {name: value for name, value in fields.items() if value}


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        **call.extra,
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
