"""The base of parsers for calls between marks: a subclass says the marks and how to read one block.

The text goes through a machine of states, each a method that takes the next text and returns what the next state is to
take. A state decides by the text alone, never by where it was cut, so a whole text and a streamed one agree by
construction. `last` says that no more text will come: nothing may be held back any longer, and the state returns None
once all is said.
"""

import logging
import re
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from rolltap.bases.parsers import ToolParser
from rolltap.parsing.calls import calls_from_json
from rolltap.parsing.json_text import JsonScanner
from rolltap.parsing.marks import Held, mark_pattern, marks_of
from rolltap.types.chat import ToolCall

Step = Literal["inside", "closed", "broken"]

_PIECE = 4096

_log = logging.getLogger(__name__)


class TagToolParser(ToolParser):
    """Reads calls that stand between an opening and a closing mark.

    A subclass sets `open` and `close` and defines `read`. Everything else is here: streaming, holding back what may
    become a mark, the text around calls, a block that is no call (it stays content, and spoils no other), and calls
    quoted inside a closed `<think>` (they are not calls). A closing mark inside a JSON string does not close a block.

        class Angle(rolltap.TagToolParser):
            open, close = "<<", ">>"

            def read(self, block: str) -> rolltap.ToolCall:
                name, arguments = block.split(maxsplit=1)
                return rolltap.ToolCall(name, arguments)
    """

    open: ClassVar[str]
    close: ClassVar[str]
    group: ClassVar[tuple[str, str] | None] = None
    """Marks that may stand around a run of blocks."""
    inner: ClassVar[tuple[str, ...]] = ()
    """Further marks that `step` is told of. With these, JSON in the block is not looked at."""
    thinking: ClassVar[tuple[str, str] | None] = ("<think>", "</think>")
    """Marks of the model's thinking. What stands between them is content, calls included; an opening mark that is never
    closed means nothing."""
    turn_ends: ClassVar[tuple[str, ...]] = ()
    """End-of-turn marks, dropped where they are the very end of the output."""

    def __init__(self) -> None:
        self._out: list[str | ToolCall] = []
        self._state: Callable[[str, bool], str | None] = self._in_text
        self._held = Held()
        self._block = Held()
        self._mark = ""
        self._json_end: int | None = None
        self._beginning = ""
        self._scanner = JsonScanner()
        self._think_marks: tuple[str, ...] = self.thinking or ()
        self._find_marks()

    def read(self, block: str) -> ToolCall | list[ToolCall] | None:
        """The call or calls in what stands between the marks; None, or any exception, where it is not a call.

        As it is, it reads JSON with a name and arguments: see `calls_from_json`.
        """
        return calls_from_json(block)

    def begin_block(self) -> None:
        """A block begins: a subclass with a `step` of its own gets ready."""

    def step(self, mark: str, before: str) -> Step:  # noqa: ARG002  # for subclasses
        """What a mark inside a block means, for formats in which it depends on where the mark stands.

        :param mark: an opening or closing mark or one of `inner`.
        :param before: the block's text between the mark before and this one.
        :returns: "closed": it ends the block; "broken": the block was none (its text is content, and a call may begin
            at this mark); "inside": it is part of the block.
        """
        if mark == self.close:
            return "closed"
        return "broken" if mark in self.call_marks else "inside"

    def feed(self, text: str) -> Sequence[str | ToolCall]:
        """Take the next piece of text; give what is certain now."""
        out: list[str | ToolCall] = []
        self._out = out
        self._take(text)
        return out

    def finish(self) -> Sequence[str | ToolCall]:
        """Give everything that was held back."""
        out: list[str | ToolCall] = []
        self._out = out
        rest = self._state("", True)
        while rest is not None:
            self._take(rest)
            rest = self._state("", True)
        return out

    def _take(self, text: str) -> None:
        """Let the states read the text, a long one by pieces: each block copies what is left of its piece."""
        rest: str | None
        for start in range(0, len(text), _PIECE):
            rest = text[start : start + _PIECE]
            while rest:
                rest = self._state(rest, False)

    # Text outside of blocks

    def _find_marks(self) -> None:
        self._marks = marks_of(*self.call_marks, *self._think_marks[:1], *self.turn_ends)

    @property
    def call_marks(self) -> tuple[str, ...]:
        """The opening marks, the group's included."""
        return (self.open, self.group[0]) if self.group else (self.open,)

    def _say(self, text: str) -> None:
        if text:
            self._out.append(text)

    def _say_cut(self, text: str) -> None:
        """Give a block that the text's end has cut off, without end-of-turn marks after it."""
        if self.turn_ends:
            beginning = text
            while (shorter := beginning.rstrip()).endswith(self.turn_ends):
                mark = next(mark for mark in self.turn_ends if shorter.endswith(mark))
                text = beginning = shorter[: -len(mark)]
        self._say(text)

    def _in_text(self, text: str, last: bool) -> str | None:
        if self._beginning:
            text, self._beginning = self._beginning + text, ""
        elif not self._marks.may_begin(text):
            self._say(text)
            return None
        mark = self._marks.search(text)
        if mark is None:
            end = len(text) if last else self._marks.held(text)
            self._say(text[:end])
            self._beginning = text[end:]
            return None
        self._say(text[: mark.start()])
        self._meet(mark.group())
        return text[mark.end() :]

    def _meet(self, mark: str) -> None:
        """Go on from a mark that was met in text."""
        if mark in self.turn_ends:
            self._held.add(mark)
            self._state = self._in_turn_end
        elif mark in self._think_marks:
            self._say(mark)
            self._state = self._in_thinking
        else:
            self._open_block(mark)

    def _in_turn_end(self, text: str, last: bool) -> str | None:
        waiting = self._held.undecided(text, last)
        if waiting is None:
            return None
        ends, beginning = _turn_end_patterns(self.turn_ends)
        end = ends.match(waiting).end()  # type: ignore[union-attr]  # matches ""
        self._block.add(waiting[:end])
        rest = waiting[end:]
        if last and not rest:
            self._block.take()
            return None
        if not last and beginning.fullmatch(rest):
            self._held.add(rest)
            return None
        self._say(self._block.take())
        self._state = self._in_text
        return rest

    def _in_thinking(self, text: str, last: bool) -> str | None:
        marks = marks_of(self._think_marks[1], *self.call_marks)
        text, self._beginning = self._beginning + text, ""
        mark = marks.search(text)
        if mark is None:
            end = len(text) if last else marks.held(text)
            self._say(text[:end])
            self._beginning = text[end:]
            return None
        if mark.group() == self._think_marks[1]:
            self._say(text[: mark.end()])
            self._state = self._in_text
            return text[mark.end() :]
        self._say(text[: mark.start()])
        self._state = self._in_thought_call
        return text[mark.start() :]

    def _in_thought_call(self, text: str, last: bool) -> str | None:
        """From a call inside thinking on, all waits: it is a quotation if the thinking is closed, else it counts."""
        marks = marks_of(self._think_marks[1])
        text, self._beginning = self._beginning + text, ""
        mark = marks.search(text)
        if mark is not None:
            self._say(self._held.take() + text[: mark.end()])
            self._state = self._in_text
            return text[mark.end() :]
        if last:
            self._think_marks = ()
            self._find_marks()
            self._state = self._in_text
            return self._held.take() + text
        end = marks.held(text)
        self._held.add(text[:end])
        self._beginning = text[end:]
        return None

    # A block that ends at its closing mark

    def _open_block(self, mark: str) -> None:
        self._mark = mark
        if self.group and mark == self.group[0]:
            self._held.add(mark)
            self._state = self._in_group_start
        else:
            self._begin_block()

    def _begin_block(self) -> None:
        self._json_end = None
        self._state = self._in_block if self.inner else self._in_block_start
        self.begin_block()

    def _in_group_start(self, text: str, last: bool) -> str | None:
        waiting = self._held.undecided(text, last)
        if waiting is None:
            return None
        start, start_begun = _group_start_patterns(self._mark, self.open)
        opened = start.match(waiting)
        if opened is not None:
            self._mark = opened.group()
            self._begin_block()
            return waiting[opened.end() :]
        if not last and start_begun.fullmatch(waiting):
            self._held.add(waiting)
            return None
        self._say(self._mark)
        self._state = self._in_text
        return waiting[len(self._mark) :]

    def _in_group_end(self, text: str, last: bool) -> str | None:
        """After a block of a group: the group may be over as well."""
        waiting = self._held.undecided(text, last)
        if waiting is None:
            return None
        self._state = self._in_text
        end = (self.group or ("", ""))[1]
        lead = len(waiting) - len(waiting.lstrip())
        if waiting.startswith(end, lead):
            return waiting[lead + len(end) :]
        if not waiting.isspace() and end.startswith(waiting[lead:]):
            if last:
                return None  # half a mark
            self._held.add(waiting)
            self._state = self._in_group_end
            return None
        return waiting

    def _in_block_start(self, text: str, last: bool) -> str | None:
        waiting = self._held.undecided(text, last)
        if waiting is None:
            return None
        lead = len(waiting) - len(waiting.lstrip())
        if waiting[lead : lead + 1] not in ("{", "["):
            self._state = self._in_block
            return waiting
        self._block.add(waiting[:lead])
        self._scanner = JsonScanner()
        self._state = self._in_json
        return waiting[lead:]

    def _in_json(self, text: str, last: bool) -> str | None:
        self._held.add(text)
        decided = self._scanner.feed(text, last)
        if not decided and not last:
            return None
        raw = self._held.take()
        end = resume(self._scanner, raw, self.close) if decided else len(raw)
        self._state = self._in_block
        block = self._block.take() + raw[:end]
        self._block.add(block)
        self._json_end = None if self._scanner.end is None else len(block)
        return raw[end:]

    def _in_block(self, text: str, last: bool) -> str | None:
        marks = marks_of(*dict.fromkeys((self.close, *self.call_marks, *self.inner)))
        text, self._beginning = self._beginning + text, ""
        mark = marks.search(text)
        if mark is None:
            end = len(text) if last else marks.held(text)
            self._held.add(text[:end])
            self._beginning = text[end:]
            return self._end_unclosed() if last else None
        before = self._held.take() + text[: mark.start()]
        self._block.add(before)
        step = self.step(mark.group(), before)
        if step == "inside":
            self._block.add(mark.group())
            return text[mark.end() :]
        block = self._block.take()
        self._state = self._in_text
        if step == "broken":
            self._say(self._mark + block)
            return text[mark.start() :]
        if not self._read(block):
            self._say(self._mark + block + mark.group())
        elif self.group and mark.group() == self.close:
            self._state = self._in_group_end
        return text[mark.end() :]

    def _end_unclosed(self) -> str | None:
        """The text is over inside a block: a call if its JSON is whole and only the closing mark was cut off."""
        block = self._block.take() + self._held.take()
        end = self._json_end
        cut = end is None or not self.close.startswith(block[end:].strip())
        if cut or not self._read(block[:end]):
            self._say_cut(self._mark + block)
        return None

    def _read(self, block: str) -> bool:
        """Read one block and give its calls; False where it has none."""
        try:
            calls = self.read(block)
        except Exception as error:  # noqa: BLE001  # a format's own code: its failure is this block's alone
            _log.debug("%s could not read a block: %r", type(self).__name__, error)
            return False
        if isinstance(calls, ToolCall):
            calls = [calls]
        self._out.extend(calls or ())
        return bool(calls)


def resume(scanner: JsonScanner, raw: str, close: str) -> int:
    """From where a block's text is to be read on, once the scanner has decided about its JSON, `raw`.

    After whole JSON. After broken JSON where it broke, unless the string just before has the closing mark in it: then
    its quote was most likely forgotten, and the block over at that mark.
    """
    if scanner.end is not None:
        return scanner.end
    assert scanner.failed_at is not None  # noqa: S101  # decided means one of the two
    if scanner.string is not None and close:
        closing = raw.find(close, *scanner.string)
        if closing >= 0:
            return closing
    return scanner.failed_at


def _turn_end_patterns(turn_ends: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What matches end-of-turn marks and white space, and what matches the beginning of such a mark."""
    ends = "|".join(map(re.escape, turn_ends))
    return re.compile(rf"(?:{ends}|\s)*+"), re.compile("|".join(map(mark_pattern, turn_ends)))


def _group_start_patterns(start: str, open_mark: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What matches a group's opening mark with the first block's, and all beginnings of that."""
    start = rf"{re.escape(start)}\s*+"
    return re.compile(start + re.escape(open_mark)), re.compile(start + mark_pattern(open_mark))
