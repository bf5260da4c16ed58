"""Harmony, the format of gpt-oss: messages with a channel and a recipient in their header, between special tokens.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.name
    <|constrain|>json<|message|>{…}<|call|>

Both parsers go together: `tool_parser = "gpt_oss"`, `reasoning_parser = "gpt_oss"`. The reasoning parser takes the headers
off the channels meant for people, and leaves calls to the tool parser; without it the tool parser shows the analysis
with its header.
"""

import re
from collections.abc import Generator, Iterator, Sequence
from typing import Literal, NamedTuple

from rolltap import Reasoning, ReasoningParser, ToolCall, ToolParser
from rolltap.parsing import Marks, arguments_from_json

_HEADER_MARKS = Marks("<|message|>", "<|end|>", "<|call|>", "<|return|>")
_BODY_MARKS = Marks("<|start|>", "<|channel|>", "<|end|>", "<|call|>", "<|return|>")
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_TO_TOOL = "to=functions."
"""How an output may begin: the prompt has opened the message's header, `<|start|>assistant`."""
_MAX_HEADER = 512
_PIECE = 4096  # a long text is read by pieces: each message copies what is left of its piece
_RECIPIENT = re.compile(r"\bto=(?P<name>[^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(?P<channel>\w+)")


class _Part(NamedTuple):
    """A piece of a message. Headers and ends come whole, a body in pieces."""

    kind: Literal["header", "body", "end"]
    text: str


class _Messages:
    """Cuts text that comes in pieces into the parts of messages; the parts, joined, are the text."""

    def __init__(self) -> None:
        self._beginning = ""
        self._header = ""
        self._opening = 0
        """How much of the header says that it is one."""
        self._at_start = True

    def feed(self, text: str, *, last: bool = False) -> Iterator[_Part]:
        for start in range(0, len(text), _PIECE):
            rest, self._beginning = self._beginning + text[start : start + _PIECE], ""
            if self._at_start:
                rest = self._start(rest)
            while rest:
                rest = yield from self._header_part(rest) if self._header else self._body_part(rest)
        if last:
            rest, self._header, self._beginning = self._header + self._beginning, "", ""
            if rest:
                yield _Part("body", rest)

    def _start(self, text: str) -> str:
        """Find out whether the output begins inside a header; what is to be read on."""
        lead = len(text) - len(text.lstrip())
        if _TO_TOOL.startswith(text[lead:]):
            self._beginning = text
            return ""
        self._at_start = False
        if text.startswith(_TO_TOOL, lead):
            self._opening = lead + len(_TO_TOOL)
            self._header = text[: self._opening]
        return text[self._opening :]

    def _body_part(self, text: str) -> Generator[_Part, None, str]:
        mark = _BODY_MARKS.search(text)
        end = mark.start() if mark else _BODY_MARKS.held(text)
        if end:
            yield _Part("body", text[:end])
        if mark is None:
            self._beginning = text[end:]
            return ""
        if mark.group() in _ENDS:
            yield _Part("end", mark.group())
        else:
            self._header = mark.group()
            self._opening = len(self._header)
        return text[mark.end() :]

    def _header_part(self, text: str) -> Generator[_Part, None, str]:
        mark = _HEADER_MARKS.search(text)
        end = mark.start() if mark else _HEADER_MARKS.held(text)
        self._header += text[:end]
        if len(self._header) > _MAX_HEADER or (mark is not None and mark.group() != "<|message|>"):
            header, self._header = self._header, ""
            yield _Part("body", header[: self._opening])
            return header[self._opening :] + text[end:]
        if mark is None:
            self._beginning = text[end:]
            return ""
        header, self._header = self._header + mark.group(), ""
        yield _Part("header", header)
        return text[mark.end() :]


def _purpose(header: str) -> Literal["call", "thinking", "answer"]:
    if _RECIPIENT.search(header):
        return "call"
    channel = _CHANNEL.search(header)
    return "thinking" if channel is not None and channel["channel"] == "analysis" else "answer"


class HarmonyReasoningParser(ReasoningParser):
    """Takes the analysis channel as thinking."""

    keep_special_tokens = True

    def __init__(self) -> None:
        self._messages = _Messages()
        self._purpose: Literal["call", "thinking", "answer"] = "answer"

    def feed(self, text: str) -> Sequence[str | Reasoning]:
        """Take the next piece of text; give what is certain now."""
        return [piece for part in self._messages.feed(text) for piece in self._read(part)]

    def finish(self) -> Sequence[str | Reasoning]:
        """Give everything that was held back."""
        return [piece for part in self._messages.feed("", last=True) for piece in self._read(part)]

    def _read(self, part: _Part) -> Iterator[str | Reasoning]:
        if part.kind == "header":
            self._purpose = _purpose(part.text)
        if self._purpose == "call":
            yield part.text
        elif part.kind == "body":
            yield Reasoning(part.text) if self._purpose == "thinking" else part.text
        if part.kind == "end":
            self._purpose = "answer"


class HarmonyToolParser(ToolParser):
    """Reads messages to `functions.name` as calls."""

    keep_special_tokens = True

    def __init__(self) -> None:
        self._messages = _Messages()
        self._purpose: Literal["call", "thinking", "answer"] = "answer"
        self._header = ""
        self._arguments: list[str] = []

    def feed(self, text: str) -> Sequence[str | ToolCall]:
        """Take the next piece of text; give what is certain now."""
        return [piece for part in self._messages.feed(text) for piece in self._read(part) if piece]

    def finish(self) -> Sequence[str | ToolCall]:
        """Give everything that was held back."""
        pieces = [piece for part in self._messages.feed("", last=True) for piece in self._read(part)]
        return [piece for piece in (*pieces, *self._settle("")) if piece]

    def _read(self, part: _Part) -> Iterator[str | ToolCall]:
        if part.kind == "header":
            yield from self._settle("")
            self._purpose = _purpose(part.text)
            self._header = part.text if self._purpose == "call" else ""
        elif part.kind == "body" and self._header:
            self._arguments.append(part.text)
            return
        elif part.kind == "end" and self._header:
            yield from self._settle(part.text)
        if self._purpose == "thinking" or (part.kind == "body" and self._purpose == "answer"):
            yield part.text
        if part.kind == "end":
            self._purpose = "answer"

    def _settle(self, end: str) -> Iterator[str | ToolCall]:
        """The message to a tool is over, by its `end` or because the text is: it is a call, or else content."""
        header, self._header = self._header, ""
        body = "".join(self._arguments)
        self._arguments.clear()
        if not header:
            return
        self._purpose = "answer"
        recipient = _RECIPIENT.search(header)
        name = recipient["name"].removeprefix("functions.") if recipient else ""
        arguments = (
            arguments_from_json(body) if recipient and recipient["name"].startswith("functions.") else None
        )
        if arguments is None or not name:
            yield header + body + end
        else:
            yield ToolCall(name, arguments)


TOOL_NAMES = ("gpt_oss", "openai")
REASONING_NAMES = ("gpt_oss", "openai_gptoss")


tool_parser = dict.fromkeys(TOOL_NAMES, HarmonyToolParser)
reasoning_parser = dict.fromkeys(REASONING_NAMES, HarmonyReasoningParser)
