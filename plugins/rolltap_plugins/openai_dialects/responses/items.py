"""The input items of a Responses request, read as messages."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from rolltap import ImagePart, Message, Part, Role, TextPart, ToolCall
from rolltap_plugins.openai_dialects.custom import as_arguments
from rolltap_plugins.openai_dialects.parts import audio_part, file_part, text_part
from rolltap_plugins.openai_dialects.responses.sealed import SUMMARY, opened
from rolltap_plugins.wire import json_text, one_of, refused, unnamed

log = logging.getLogger(__name__)

ROLES: dict[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "developer",
}
TEXT_PARTS = ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text")
PARTS = ("input_text", "output_text", "text", "refusal", "input_image", "input_file", "input_audio")

PROVIDERS_OWN = frozenset(
    {
        "additional_tools",
        "configuration_update",
        "file_search_call",
        "image_generation_call",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_list_tools",
        "program",
        "program_output",
        "web_search_call",
    }
)
"""What tools that the provider runs have left in the history; left out as those tools are."""

DONE = {
    "apply_patch_call": "operation",
    "code_interpreter_call": "code",
    "computer_call": "action",
    "local_shell_call": "action",
    "mcp_call": "arguments",
    "shell_call": "action",
    "tool_search_call": "arguments",
}
"""What the model did with a provider's tool is told as its own words: the field that says what it did."""
SEEN = {
    "apply_patch_call_output": "output",
    "computer_call_output": "output",
    "local_shell_call_output": "output",
    "shell_call_output": "output",
    "tool_search_output": "tools",
}
"""What came of it is told as a user's words: the field that says what it was."""

_BESIDE_TEXT = ("annotations", "logprobs")


class Item(Struct, kw_only=True):
    """An input item of any kind; one without a type is a message."""

    type: str = "message"
    id: str | None = None
    status: str | None = None
    role: str | None = None
    content: str | list[dict[str, Any]] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    output: str | list[dict[str, Any]] | dict[str, Any] | None = None
    summary: list[dict[str, Any]] | None = None
    encrypted_content: str | None = None


def history(items: str | Sequence[Item], raw: Any) -> list[Message]:
    """The neutral messages of a body's input, `raw` as it stands there.

    Raises `BadRequest` that names the item which can't be one.
    """
    if isinstance(items, str):
        return [Message(role="user", content=items)]
    reader = _Reader()
    for at, (item, own) in enumerate(zip(items, raw, strict=True)):
        reader.read(item, own, f"input[{at}]")
    reader.finish()
    return reader.messages


class _Reader:
    """Puts items together: what the assistant thought, said and called in one reply is one message."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._attached: list[Part] = []

    def read(self, item: Item, raw: Mapping[str, Any], where: str) -> None:
        """Take the next item."""
        if not item.type.endswith("_call_output"):
            self.finish()
        match item:
            case Item(type="message", role="assistant"):
                self._say(item, raw, where)
            case Item(type="message"):
                self.messages.append(_message(item, raw, where))
            case Item(type="reasoning"):
                self._think(item, where)
            case Item(type="function_call" | "custom_tool_call"):
                calls = (*self._assistant().tool_calls, _call(item, raw, where))
                self._change(tool_calls=calls)
            case Item(type="function_call_output" | "custom_tool_call_output"):
                self._result(item, where)
            case Item(type="compaction", encrypted_content=str(sealed)) if summary := opened(sealed):
                text = f"Summary of the conversation so far:\n\n{summary.get(SUMMARY, '')}"
                self.messages.append(Message(role="user", content=text))
            case _:
                self._others(item, raw, where)

    def finish(self) -> None:
        """Add what the results so far had attached: models look at it in user messages alone."""
        if self._attached:
            self.messages.append(Message(role="user", content=tuple(self._attached)))
            self._attached = []

    def _others(self, item: Item, raw: Mapping[str, Any], where: str) -> None:
        """What providers' tools have left behind: told in words, or left out."""
        if item.type in DONE:
            told = f"[{item.type}: {_in_words(raw.get(DONE[item.type]))}]"
            before = self._assistant().text
            self._change(content=f"{before}\n{told}" if before else told)
            if item.type == "mcp_call" and item.output:
                self._see("mcp_call_output", item.output)
        elif item.type in SEEN:
            self._see(item.type, raw.get(SEEN[item.type]) or raw.get("status"))
        elif item.type in PROVIDERS_OWN or item.type == "compaction":
            log.info("%s is left out: the type %r is its provider's own", where, item.type)
        else:
            raise refused(f"{where}.type", f"is {item.type!r}, which can't be given to a model here.")

    def _see(self, kind: str, output: Any) -> None:
        self.finish()
        if isinstance(output, Mapping) and isinstance(output.get("image_url"), str):
            content: Any = (TextPart(f"[{kind}]"), ImagePart(output["image_url"]))
        else:
            content = f"[{kind}: {_in_words(output)}]"
        self.messages.append(Message(role="user", content=content))

    def _assistant(self) -> Message:
        """The reply that the items are of: the last message, if it is the assistant's."""
        if not self.messages or self.messages[-1].role != "assistant":
            self.messages.append(Message(role="assistant"))
        return self.messages[-1]

    def _change(self, **fields: Any) -> None:
        """Put another message in the place of the last."""
        self.messages[-1] = msgspec.structs.replace(self.messages[-1], **fields)

    def _say(self, item: Item, raw: Mapping[str, Any], where: str) -> None:
        content = _only_text(item.content, f"{where}.content", "an assistant")
        assistant = self._assistant()
        extra = {**assistant.extra, **unnamed(raw, Item.__struct_fields__, ("phase",))}
        self._change(content=assistant.text + content, extra=extra)

    def _think(self, item: Item, where: str) -> None:
        """The thinking itself where it is there, else its summary; and what an upstream wants back of it."""
        thoughts = _only_text(item.content or [], f"{where}.content", "reasoning")
        summary = [
            _only_text([part], f"{where}.summary[{at}]", "a summary")
            for at, part in enumerate(item.summary or ())
        ]
        assistant = self._assistant()
        reasoning = (assistant.reasoning or "") + (thoughts or "\n".join(summary))
        extra = {**assistant.extra, **(opened(item.encrypted_content or "") or {})}
        self._change(reasoning=reasoning or None, extra=extra)

    def _result(self, item: Item, where: str) -> None:
        if item.call_id is None:
            raise refused(f"{where}.call_id", "is missing.")
        if isinstance(item.output, dict):
            raise refused(f"{where}.output", "must be text or a list of parts.")
        parts = _parts(item.output, f"{where}.output")
        content: str = "".join(part.text for part in parts if isinstance(part, TextPart))
        attached = [part for part in parts if not isinstance(part, TextPart)]
        if attached and not content:
            content = "[image]" if isinstance(attached[0], ImagePart) else "[file]"
        self._attached += attached
        self.messages.append(Message(role="tool", content=content, tool_call_id=item.call_id))


def _message(item: Item, raw: Mapping[str, Any], where: str) -> Message:
    role = ROLES.get(item.role or "")
    if role is None:
        raise refused(f"{where}.role", f"is {item.role!r}; use {one_of(ROLES)}.")
    parts = _parts(item.content, f"{where}.content")
    plain = all(isinstance(part, TextPart) and not part.extra for part in parts)
    content = "".join(part.text for part in parts if isinstance(part, TextPart)) if plain else tuple(parts)
    return Message(role=role, content=content, extra=unnamed(raw, Item.__struct_fields__))


def _call(item: Item, raw: Mapping[str, Any], where: str) -> ToolCall:
    if not item.name:
        raise refused(f"{where}.name", "is missing.")
    arguments = item.arguments
    if item.type == "custom_tool_call":
        arguments = as_arguments(item.input or "")
    if not isinstance(arguments, str):
        arguments = json_text(arguments or {})
    extra = unnamed(raw, Item.__struct_fields__, ("async", "caller", "function"))
    return ToolCall(name=item.name, arguments=arguments or "{}", id=item.call_id or "", extra=extra)


def _only_text(value: str | list[dict[str, Any]] | None, where: str, whose: str) -> str:
    parts = _parts(value, where)
    if not all(isinstance(part, TextPart) for part in parts):
        raise refused(where, f"of {whose} can't be anything but text.")
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def _parts(value: str | list[dict[str, Any]] | None, where: str) -> list[Part]:
    if value is None:
        raise refused(where, "is missing.")
    if isinstance(value, str):
        return [TextPart(value)]
    return [_part(part, f"{where}[{at}]") for at, part in enumerate(value)]


def _part(part: Mapping[str, Any], where: str) -> Part:
    kind = part.get("type")
    if kind in TEXT_PARTS:
        text = text_part(part, "refusal" if kind == "refusal" else "text", where)
        return TextPart(text.text, extra=unnamed(text.extra, _BESIDE_TEXT))
    if kind == "input_image":
        url = part.get("image_url")
        if not isinstance(url, str):
            raise refused(f"{where}.image_url", "is missing; files kept at the provider can't be read here.")
        return ImagePart(url, extra=unnamed(part, ("type", "image_url")))
    if kind == "input_file":
        return file_part({}, part, where)
    if kind == "input_audio":
        return audio_part(part, where)
    if kind is None:
        raise refused(f"{where}.type", "is missing.")
    raise refused(f"{where}.type", f"is {kind!r}; supported are {one_of(PARTS)}.")


def _in_words(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)
