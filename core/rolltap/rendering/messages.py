"""rolltap's messages as the dicts that chat templates expect, in the form that a template takes them."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from rolltap.errors import BadRequest
from rolltap.rendering.template_capabilities import TemplateCapabilities
from rolltap.types.chat import Message, ToolCall

_ID_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SHORT_ID = 9
SYSTEM_ROLES = frozenset({"system", "developer"})
"""Roles whose text comes from whoever built the agent."""


def check_content(messages: Sequence[Message], first_index: int = 0) -> None:
    """Raise `BadRequest` for what token backends cannot take; `first_index` is the first message's in the request."""
    if not messages and not first_index:
        raise BadRequest("messages must not be empty", param="messages")
    for index, message in enumerate(messages, first_index):
        if message.images:
            raise BadRequest(
                "image parts are not supported by token backends yet", param=f"messages[{index}].content"
            )


def name_calls(messages: Sequence[Message], capabilities: TemplateCapabilities) -> Sequence[Message]:
    """The messages with ids of calls that name the tool, where the template shows calls by these alone.

    Ids that do so already, as the model's own, stay. Numbers count the calls of the whole conversation.
    """
    if not capabilities.named_call_ids:
        return messages
    named: dict[str, str] = {}
    renamed, count = [], 0
    for message in messages:
        calls = []
        for number, call in enumerate(message.tool_calls, count):
            own = call.id.rpartition(":")[0].removeprefix("functions.") == call.name
            named[call.id] = call.id if own else f"functions.{call.name}:{number}"
            calls.append(msgspec.structs.replace(call, id=named[call.id]))
        count += len(calls)
        answered = named.get(message.tool_call_id or "", message.tool_call_id)
        renamed.append(msgspec.structs.replace(message, tool_calls=tuple(calls), tool_call_id=answered))
    return renamed


def place_systems(messages: Sequence[Message], capabilities: TemplateCapabilities) -> list[Message]:
    """The messages with system text where the template shows it.

    Agents send system messages in the middle of a conversation. A template that refuses, loses or moves them gets
    their text as part of the user message beside them. Nothing moves over an assistant message, so a conversation
    may be split behind one and its parts placed one by one.
    """
    leading = next((i for i, one in enumerate(messages) if one.role not in SYSTEM_ROLES), len(messages))
    fitting = min(leading, 1) if capabilities.systems == "first" else 0
    if capabilities.systems == "anywhere" or not any(one.role in SYSTEM_ROLES for one in messages[fitting:]):
        return list(messages)
    placed: list[Message] = []
    if fitting:
        placed.append(_with_texts(messages[0], [one.text for one in messages[:leading]]))
    waiting: list[str] = []
    for message in messages[leading if fitting else 0 :]:
        if message.role in SYSTEM_ROLES and placed and placed[-1].role == "user":
            placed[-1] = _with_texts(placed[-1], [placed[-1].text, message.text])
        elif message.role in SYSTEM_ROLES:
            waiting.append(message.text)
        elif message.role == "user" and waiting:
            placed.append(_with_texts(message, [*waiting, message.text]))
            waiting.clear()
        elif message.role == "assistant" and waiting:
            placed += [Message(role="user", content="\n\n".join(waiting)), message]
            waiting.clear()
        else:
            placed.append(message)
    if waiting:
        placed.append(Message(role="user", content="\n\n".join(waiting)))
    return placed


def _with_texts(message: Message, texts: Sequence[str]) -> Message:
    return msgspec.structs.replace(message, content="\n\n".join(texts))


def as_dict(message: Message, capabilities: TemplateCapabilities) -> dict[str, Any]:
    """One message as templates expect it. Keys without a value are left out: many templates test for the key."""
    role = "system" if message.role == "developer" and not capabilities.developer else message.role
    known: dict[str, Any] = {"role": role, "content": message.text}
    if message.name is not None:
        known["name"] = message.name
    if message.tool_call_id is not None:
        known["tool_call_id"] = call_id(message.tool_call_id, capabilities)
    if role != "assistant":
        return known
    reasoning = message.reasoning
    if message.tool_calls:
        known["tool_calls"] = [_call_dict(call, capabilities) for call in message.tool_calls]
        if not message.text:
            known["content"] = capabilities.empty_content
        elif reasoning and not capabilities.text_with_calls_and_reasoning:
            known["content"], reasoning = capabilities.empty_content, f"{reasoning}\n\n{message.text}"
    if reasoning is not None:
        # Qwen, GLM and DeepSeek read the first name, gpt-oss the second.
        known["reasoning_content"] = known["thinking"] = reasoning
    return known


def call_id(identifier: str, capabilities: TemplateCapabilities) -> str:
    """The call's id as the template takes it; another form of it is always the same for the same id."""
    if not capabilities.short_call_ids or (
        len(identifier) == _SHORT_ID and all(letter in _ID_LETTERS for letter in identifier)
    ):
        return identifier
    number = int.from_bytes(hashlib.sha256(identifier.encode()).digest()[:8])
    letters = []
    for _ in range(_SHORT_ID):
        number, letter = divmod(number, len(_ID_LETTERS))
        letters.append(_ID_LETTERS[letter])
    return "".join(letters)


def _call_dict(call: ToolCall, capabilities: TemplateCapabilities) -> dict[str, Any]:
    arguments = _arguments(call.arguments, capabilities)
    function = {"name": call.name, "arguments": arguments}
    return {"id": call_id(call.id, capabilities), "type": "function", "function": function}


def _arguments(text: str, capabilities: TemplateCapabilities) -> dict[str, Any] | str:
    """The arguments in the template's form. What a model wrote need not be a JSON object, and is shown anyway."""
    if not capabilities.dict_arguments:
        return text
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict):
        return arguments
    return text if capabilities.text_arguments else {"arguments": text}
