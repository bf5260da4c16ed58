"""Reads a model's text as what it means: thinking, content and tool calls.

White space that only frames a call is no content. It is told from content's own while the text streams: white space at
the end of what was said so far waits, and is given once more content follows. Around calls that follow each other it is
dropped, as it is at either end of an output with calls; an output without calls comes out unchanged.
"""

from collections.abc import Iterable

from rolltap.bases.parsers import CallFragment, Reasoning, ReasoningParser, ToolParser
from rolltap.parsing.calls import arguments_from_json, calls_from_json
from rolltap.parsing.marks import Held
from rolltap.types.chat import ToolCall, ToolChoice

Piece = str | Reasoning | ToolCall


class OutputReader:
    """Reads one choice's text, whole or in pieces: the results, joined, are the same however it was cut.

    The reasoning parser sees the text first, the tool parser what is left of it. Without a tool parser (no tools, or
    `tool_choice` "none") the text is content as it is. Where `tool_choice` demands a call, a reply that is nothing but
    JSON is read as one too: an array of calls or one call, or the arguments of the named tool.
    """

    def __init__(
        self,
        tool_parser: ToolParser | None = None,
        reasoning_parser: ReasoningParser | None = None,
        tool_choice: ToolChoice = ToolChoice(),  # noqa: B008  # frozen
        prompt_tail: str = "",
    ) -> None:
        self._tools = tool_parser
        self._reasoning = reasoning_parser
        self._choice = tool_choice
        self._json: Held | None = (
            Held() if tool_parser and tool_choice.mode in ("required", "named") else None
        )
        self._json_begun = False
        self._spaces = _Spaces()
        if reasoning_parser is not None:
            if tool_parser is not None:
                reasoning_parser.call_marks = tool_parser.call_marks
            reasoning_parser.begin(prompt_tail)

    def feed(self, text: str) -> list[Piece]:
        """Take the next piece of text; give what is certain now, in order."""
        out: list[Piece] = []
        if self._reasoning is None:
            self._answer(text, out)
        else:
            self._split(self._reasoning.feed(text), out)
        return out

    def finish(self) -> list[Piece]:
        """The text is over: give everything that was held back. Called once, last."""
        out: list[Piece] = []
        if self._reasoning is not None:
            self._split(self._reasoning.finish(), out)
        self._end(out)
        return out

    def _split(self, pieces: Iterable[str | Reasoning], out: list[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, Reasoning):
                out.append(piece)
            else:
                self._answer(piece, out)

    def _answer(self, text: str, out: list[Piece]) -> None:
        if self._tools is None:
            if text:
                out.append(text)
            return
        if self._json is not None:
            waiting = text if self._json_begun else self._json.undecided(text, last=False)
            if waiting is None:
                return
            if self._json_begun or waiting.lstrip()[:1] in ("{", "["):
                self._json_begun = True
                self._json.add(waiting)
                return
            self._json, text = None, waiting
        self._spaces.place(self._tools.feed(text), out)

    def _end(self, out: list[Piece]) -> None:
        if self._tools is None:
            return
        if self._json is not None:
            text = self._json.take()
            calls = _demanded_calls(text, self._choice)
            if calls is not None:
                out.extend(calls)
                return
            self._spaces.place(self._tools.feed(text), out)
        self._spaces.place(self._tools.finish(), out)
        self._spaces.end(out)


def _demanded_calls(text: str, choice: ToolChoice) -> list[ToolCall] | None:
    """The calls that a reply is which is nothing but JSON, where the client demanded calls."""
    calls = calls_from_json(text)
    if choice.mode == "required" or (calls and all(call.name == choice.name for call in calls)):
        return calls
    arguments = arguments_from_json(text.strip()) if text.lstrip()[:1] == "{" else None
    return None if arguments is None else [ToolCall(choice.name, arguments)]


class _Spaces:
    """Tells white space that frames calls from content's own."""

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._before_calls: list[str] = []
        """White space between what was said and the run of calls that came last."""
        self._called = False
        self._said = False
        self._call_was_last = False

    def place(self, items: Iterable[str | ToolCall], out: list[Piece]) -> None:
        for item in items:
            if not isinstance(item, str):
                if not isinstance(item, CallFragment) or item.name:
                    self._place_call()
                out.append(item)
            elif item:
                self._place_text(item, out)

    def _place_call(self) -> None:
        if not self._call_was_last:
            self._before_calls = self._waiting if self._said else []
        self._waiting = []
        self._called = self._call_was_last = True

    def _place_text(self, text: str, out: list[Piece]) -> None:
        end = len(text)
        if text[-1].isspace():
            end = len(text.rstrip())
            if not end:
                self._waiting.append(text)
                return
        if self._before_calls or self._waiting or not self._said:
            said = "".join(self._before_calls) + "".join(self._waiting) + text[:end]
            if self._called and not self._said:
                said = said.lstrip()
            self._before_calls, self._waiting = [], []
        else:
            said = text[:end]
        self._said, self._call_was_last = True, False
        if end < len(text):
            self._waiting = [text[end:]]
        out.append(said)

    def end(self, out: list[Piece]) -> None:
        if self._waiting and not self._called:
            out.append("".join(self._waiting))
