"""The messages and the system prompt of a Messages request."""

import re
from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec
from msgspec import Struct

from rolltap import Content, ImagePart, Message, Part, TextPart, ToolCall
from rolltap_plugins.anthropic_messages.blocks import (
    Block,
    joined,
    kept_in,
    providers_words,
    text_of,
    unsupported,
    user_parts,
)
from rolltap_plugins.wire import json_text, refused

# Claude Code puts a value that changes with every request in front of its system prompt. It is no part of what the
# model should read, and it would keep every request from extending the one before.
_VOLATILE = re.compile(r"\A\s*x-anthropic-billing-header:[^\n]*\n*", re.IGNORECASE)


class WireMessage(Struct, kw_only=True):
    """A message as it stands in the body."""

    role: str
    content: str | list[Block]


def system_content(system: str | Sequence[str | Block]) -> Content:
    """The system prompt, without the volatile part; "" where nothing is left of it."""
    if isinstance(system, str):
        return _VOLATILE.sub("", system)
    parts = []
    for at, item in enumerate(system):
        text = item if isinstance(item, str) else text_of(item, f"system[{at}]")
        if text := _VOLATILE.sub("", text):
            parts.append(TextPart(text, extra={} if isinstance(item, str) else item.extra))
    return joined(parts, " ")


def history(messages: Sequence[WireMessage]) -> list[list[Message]]:
    """The neutral messages that each one is. Raises `BadRequest` that names what can't be one."""
    return [_read(message, f"messages[{at}]") for at, message in enumerate(messages)]


def _read(message: WireMessage, where: str) -> list[Message]:
    match message:
        case WireMessage(role="system"):
            content = system_content(message.content)
            return [Message(role="system", content=content)] if content else []
        case WireMessage(role="user" | "assistant" as role, content=str(text)):
            return [Message(role=role, content=text)]
        case WireMessage(role="assistant", content=list(blocks)):
            return [_assistant(blocks, where)]
        case WireMessage(role="user", content=list(blocks)):
            return _user(blocks, where)
    raise refused(f"{where}.role", f"is {message.role!r}; use user, assistant or system.")


def conversation(read: Iterable[Iterable[Message]]) -> list[Message]:
    """The messages one after the other, answers that follow each other joined."""
    messages: list[Message] = []
    for message in chain.from_iterable(read):
        if message.role == "assistant":
            _add_assistant(messages, message)
        else:
            messages.append(message)
    return messages


def _add_assistant(read: list[Message], message: Message) -> None:
    """Add an answer. One that follows a text goes on with it, as the answer to a begun one does: they are one turn."""
    last = read[-1] if read else None
    if last is None or last.role != "assistant" or last.tool_calls:
        read.append(message)
        return
    read[-1] = msgspec.structs.replace(
        message,
        content=last.text + message.text or message.content,
        reasoning="".join(filter(None, [last.reasoning, message.reasoning])) or None,
        extra={**last.extra, **message.extra},
    )


def _assistant(blocks: Sequence[Block], where: str) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    kept = kept_in(blocks)
    call_extras = kept.get("calls") or {}
    before = ""
    for at, block in enumerate(blocks):
        kind = block.type
        match block:
            case Block(type="text"):
                # Blocks side by side are lines; a text that thinking interrupted goes on where it stopped.
                texts += ["\n" if before == "text" else "", text_of(block, f"{where}.content[{at}]")]
            case Block(type="thinking", thinking=str(thought)):
                thoughts.append(thought)
            case Block(type="redacted_thinking"):
                pass  # readable to Anthropic alone, but for what rolltap has put there
            case Block(type="tool_use", name=str(name)):
                call_id = block.id or ""
                extra = call_extras.get(call_id) or {}
                calls.append(ToolCall(name, json_text(block.input or {}), call_id, extra))
            case Block(type="tool_use"):
                raise refused(f"{where}.content[{at}].name", "is missing.")
            case _:
                words = providers_words(block)
                if words is None:
                    raise unsupported(block, f"{where}.content[{at}]")
                texts += ["\n" if texts and words else "", words]
                kind = "text" if words else before
        before = kind
    return Message(
        role="assistant",
        content="".join(texts) if texts else None,
        reasoning="".join(thoughts) or None,
        tool_calls=tuple(calls),
        extra=kept.get("message") or {},
    )


def _user(blocks: Sequence[Block], where: str) -> list[Message]:
    """Each tool's result as a message of its own, first; then the text and the attachments, if there are any."""
    results: list[Message] = []
    parts: list[Part] = []
    attachments: list[Part] = []
    for at, block in enumerate(blocks):
        inside = f"{where}.content[{at}]"
        if block.type == "tool_result":
            message, found = _result(block, inside)
            results.append(message)
            attachments += found
        else:
            parts += user_parts(block, inside)
    if parts or attachments or not results:
        results.append(Message(role="user", content=joined([*attachments, *parts])))
    return results


def _result(block: Block, where: str) -> tuple[Message, list[Part]]:
    """A tool's result as text, and the attachments in it: models look at those in user messages alone."""
    if block.tool_use_id is None:
        raise refused(f"{where}.tool_use_id", "is missing.")
    content = block.content or ""
    parts: list[Part] = []
    if isinstance(content, str):
        parts = [TextPart(content)]
    elif isinstance(content, dict):
        parts = [TextPart(json_text(content))]
    else:
        for at, inner in enumerate(content):
            parts += user_parts(inner, f"{where}.content[{at}]")
    attachments: list[Part] = [part for part in parts if not isinstance(part, TextPart)]
    texts = [part for part in parts if isinstance(part, TextPart)]
    said = joined(texts)
    if attachments and not texts:
        said = "[image]" if isinstance(attachments[0], ImagePart) else "[document]"
    message = Message(role="tool", content=said, tool_call_id=block.tool_use_id)
    if block.is_error:
        text = f"Error: {message.text}" if message.text else "Error"
        message = msgspec.structs.replace(message, content=text)
    if block.extra:
        message = msgspec.structs.replace(message, content=(TextPart(message.text, extra=block.extra),))
    return message, attachments
