"""The base of reasoning parsers: thinking between an opening and a closing mark, before the answer."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from rolltap.bases.parsers import Reasoning, ReasoningParser
from rolltap.parsing.marks import Held, marks_of


class TagReasoningParser(ReasoningParser):
    """Splits off thinking that stands between two marks at the beginning of the output. A subclass names the marks.

    The prompt may have opened the thinking itself. Thinking that is never closed is all thinking, except from the first
    mark of a tool call on: the model then forgot to close it, and what follows is the answer. This is decided at the
    end, since a call inside thinking that does get closed was only thought of. Marks after the answer has begun are
    text. Line ends next to the marks belong to the marks.
    """

    open: ClassVar[str]
    close: ClassVar[str]

    def __init__(self) -> None:
        self._out: list[str | Reasoning] = []
        self._state: Callable[[str, bool], str | None] = self._at_start
        self._held = Held()
        self._line_ends = Held()
        self._beginning = ""
        self._by_prompt = False
        self._thought = False
        self._fresh = True

    def begin(self, prompt_tail: str) -> None:
        """Start inside the thinking where the prompt ends with its opening mark."""
        self._by_prompt = prompt_tail.rstrip().endswith(self.open)

    def feed(self, text: str) -> Sequence[str | Reasoning]:
        """Take the next piece of text; give what is certain now."""
        if self._state == self._in_answer:
            return [text] if text else []
        out: list[str | Reasoning] = []
        self._out = out
        rest: str | None = text
        while rest:
            rest = self._state(rest, False)
        return out

    def finish(self) -> Sequence[str | Reasoning]:
        """Give everything that was held back."""
        out: list[str | Reasoning] = []
        self._out = out
        rest: str | None = ""
        while rest is not None:
            rest = self._state(rest, True)
        return out

    def _at_start(self, text: str, last: bool) -> str | None:
        """At the beginning, or after thinking was closed: more thinking may be opened."""
        waiting = self._held.undecided(text, last)
        if waiting is None:
            return None
        begins = waiting.lstrip()
        if begins.startswith(self.open):
            self._line_ends.add("\n" if self._thought else "")
            self._fresh = True
            self._state = self._in_thinking
            return begins[len(self.open) :]
        if begins and not last and self.open.startswith(begins):
            self._held.add(waiting)
            return None
        if self._by_prompt:
            self._state = self._in_thinking
            return waiting
        self._state = self._in_answer
        return waiting.lstrip("\r\n") if self._thought else waiting

    def _in_answer(self, text: str, last: bool) -> str | None:  # noqa: ARG002  # a state like the others
        if text:
            self._out.append(text)
        return None

    def _in_thinking(self, text: str, last: bool) -> str | None:
        self._by_prompt, self._thought = False, True
        marks = marks_of(self.close, *self.call_marks)
        text, self._beginning = self._beginning + text, ""
        mark = marks.search(text)
        if mark is None:
            end = len(text) if last else marks.held(text)
            self._think(text[:end])
            self._beginning = text[end:]
            return None
        self._think(text[: mark.start()])
        if mark.group() == self.close:
            self._line_ends.take()
            self._state = self._at_start
            return text[mark.end() :]
        self._state = self._in_thought_call
        return text[mark.start() :]

    def _in_thought_call(self, text: str, last: bool) -> str | None:
        """From a call inside the thinking on all waits, until it shows whether the thinking is closed."""
        marks = marks_of(self.close)
        text, self._beginning = self._beginning + text, ""
        mark = marks.search(text)
        if mark is not None:
            self._think(self._held.take() + text[: mark.start()])
            self._state = self._in_thinking
            return text[mark.start() :]
        if last:
            self._state = self._in_answer
            return self._held.take() + text
        end = marks.held(text)
        self._held.add(text[:end])
        self._beginning = text[end:]
        return None

    def _think(self, text: str) -> None:
        """Give thinking; line ends at its end wait until more of it comes."""
        if self._fresh:
            text = text.lstrip("\r\n")
        if not text:
            return
        self._fresh = False
        end = len(text.rstrip("\r\n"))
        if end:
            self._out.append(Reasoning(self._line_ends.take() + text[:end]))
        self._line_ends.add(text[end:])
