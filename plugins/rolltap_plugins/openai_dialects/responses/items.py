"""The input items of a Responses request, read as messages."""

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from rolltap import ImagePart, Message, Role, TextPart, ToolCall
from rolltap_plugins.wire import json_text, one_of, refused

log = logging.getLogger(__name__)

ROLES: dict[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "developer",
}
TEXT_PARTS = ("input_text", "output_text", "text", "refusal")

PROVIDERS_OWN = frozenset(
    {
        "code_interpreter_call",
        "compaction",
        "computer_call",
        "computer_call_output",
        "file_search_call",
        "image_generation_call",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "web_search_call",
    }
)
"""What tools that the provider runs have left in the history; left out as those tools are."""

_IMAGE_ONLY = "[image]"


class Part(Struct, kw_only=True):
    """A piece of content."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None


class Item(Struct, kw_only=True):
    """An input item of any kind; one without a type is a message."""

    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    output: str | list[Part] | None = None
    summary: list[Part] | None = None


def history(items: str | Sequence[Item]) -> list[Message]:
    """The neutral messages. Raises `BadRequest` that names the item which can't be one."""
    if isinstance(items, str):
        return [Message(role="user", content=items)]
    reader = _Reader()
    for at, item in enumerate(items):
        reader.read(item, f"input[{at}]")
    reader.finish()
    return reader.messages


class _Reader:
    """Puts items together: what the assistant thought, said and called in one reply is one message."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._images: list[TextPart | ImagePart] = []

    def read(self, item: Item, where: str) -> None:
        """Take the next item."""
        if not item.type.endswith("_call_output"):
            self.finish()
        match item:
            case Item(type="message", role="assistant"):
                self._say(item, where)
            case Item(type="message"):
                self.messages.append(_message(item, where))
            case Item(type="reasoning"):
                thoughts = (self._assistant().reasoning or "") + _thoughts(item, where)
                self._change(reasoning=thoughts)
            case Item(type="function_call" | "custom_tool_call"):
                calls = (*self._assistant().tool_calls, _call(item, where))
                self._change(tool_calls=calls)
            case Item(type="function_call_output" | "custom_tool_call_output"):
                self._result(item, where)
            case _ if item.type in PROVIDERS_OWN:
                log.info("%s is left out: the type %r is its provider's own", where, item.type)
            case _:
                raise refused(f"{where}.type", f"is {item.type!r}, which can't be given to a model here.")

    def finish(self) -> None:
        """Add the images of the results so far: models look at them in user messages alone."""
        if self._images:
            self.messages.append(Message(role="user", content=tuple(self._images)))
            self._images = []

    def _assistant(self) -> Message:
        """The reply that the items are of: the last message, if it is the assistant's."""
        if not self.messages or self.messages[-1].role != "assistant":
            self.messages.append(Message(role="assistant"))
        return self.messages[-1]

    def _change(self, **fields: Any) -> None:
        """Put another message in the place of the last."""
        self.messages[-1] = msgspec.structs.replace(self.messages[-1], **fields)

    def _say(self, item: Item, where: str) -> None:
        content = _content(item.content, f"{where}.content")
        if not isinstance(content, str):
            raise refused(f"{where}.content", "of an assistant can't be an image.")
        self._change(content=self._assistant().text + content)

    def _result(self, item: Item, where: str) -> None:
        if item.call_id is None:
            raise refused(f"{where}.call_id", "is missing.")
        content = _content(item.output, f"{where}.output")
        if not isinstance(content, str):
            self._images += [part for part in content if isinstance(part, ImagePart)]
            content = "".join(part.text for part in content if isinstance(part, TextPart)) or _IMAGE_ONLY
        self.messages.append(Message(role="tool", content=content, tool_call_id=item.call_id))


def _message(item: Item, where: str) -> Message:
    role = ROLES.get(item.role or "")
    if role is None:
        raise refused(f"{where}.role", f"is {item.role!r}; use {one_of(ROLES)}.")
    return Message(role=role, content=_content(item.content, f"{where}.content"))


def _thoughts(item: Item, where: str) -> str:
    """The thinking itself where it is there, else its summary."""
    thoughts = _content(item.content or [], f"{where}.content")
    if not isinstance(thoughts, str):
        raise refused(f"{where}.content", "of reasoning can't be an image.")
    return thoughts or "\n".join(part.text or "" for part in item.summary or ())


def _call(item: Item, where: str) -> ToolCall:
    if not item.name:
        raise refused(f"{where}.name", "is missing.")
    arguments = item.arguments
    if item.type == "custom_tool_call":
        arguments = {"input": item.input or ""}
    if not isinstance(arguments, str):
        arguments = json_text(arguments or {})
    return ToolCall(name=item.name, arguments=arguments or "{}", id=item.call_id or "")


def _content(value: str | list[Part] | None, where: str) -> str | tuple[TextPart | ImagePart, ...]:
    """Text alone is one text; beside an image each part keeps its place."""
    if value is None:
        raise refused(where, "is missing.")
    if isinstance(value, str):
        return value
    parts = tuple(_part(part, f"{where}[{at}]") for at, part in enumerate(value))
    if any(isinstance(part, ImagePart) for part in parts):
        return parts
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def _part(part: Part, where: str) -> TextPart | ImagePart:
    text = part.refusal if part.type == "refusal" else part.text
    if part.type in {*TEXT_PARTS, "reasoning_text"}:
        if text is None:
            raise refused(f"{where}.text", "is missing.")
        return TextPart(text)
    if part.type == "input_image":
        if part.image_url is None:
            raise refused(f"{where}.image_url", "is missing; files kept at the provider can't be read here.")
        return ImagePart(part.image_url)
    raise refused(f"{where}.type", f"is {part.type!r}; supported are {one_of((*TEXT_PARTS, 'input_image'))}.")
