"""The base of parsers whose blocks end where their JSON ends, whatever mark follows or is missing."""

import re
from functools import lru_cache
from typing import ClassVar, NamedTuple

from rolltap.bases.parsers import CallFragment
from rolltap.parsing.argument_stream import ArgumentStream
from rolltap.parsing.json_text import JsonScanner
from rolltap.parsing.marks import mark_pattern
from rolltap.parsing.tag_parsing import TagToolParser, resume
from rolltap.types.chat import ToolCall

FENCE = r"\s*+(?:`{1,2}\Z|```[A-Za-z]{0,16}+\s*+)?"
"""White space and a Markdown fence, as a `JsonToolParser.head_pattern`."""
_CALL_BEGUN = re.compile(
    r'\{\s*+"name"\s*+:\s*+"(?P<name>[^"\\\x00-\x1f]++)"\s*+,\s*+"(?:arguments|parameters)"\s*+:\s*+(?=\{)'
)
_MAX_BEGINNING = 512
"""Characters of a call before its arguments; one whose beginning is longer is given whole."""
_MOST_BRACES = 32
"""Closing brackets too many after a call's JSON. More are no slip but a model that repeats itself, and would be looked at
again with each piece that comes."""


class JsonToolParser(TagToolParser):
    """A `TagToolParser` whose block is a mark, some JSON, and a closing mark that may be missing.

    A call is given as soon as its JSON is whole. More JSON in the same block is more calls; an outermost brace that is
    missing before the closing mark is put in its place; JSON that was cut off stays content. An opening mark that no
    JSON follows is content. `read` is given the JSON alone.

    With `stream_arguments`, a call that `begin_call` knows is given in fragments. What was given stands: where its JSON
    is cut off or breaks later, that much is a call and no content.
    """

    close: ClassVar[str] = ""
    """May be empty: the format then has no closing mark."""
    head_pattern: ClassVar[str] = FENCE
    """A regular expression for what may stand between the opening mark and the JSON, such as the tool's name. It must
    match every beginning of that as well, for the text comes in pieces: `mark_pattern` writes it for a mark."""
    bare: ClassVar[bool] = False
    """Whether an output that begins with JSON is a block without an opening mark."""

    def __init__(self) -> None:
        super().__init__()
        self.head = ""
        """What stood between the opening mark and the JSON that `read` is given."""
        self._value = ""
        self._beginning_of_call: str | None = None
        """The JSON so far, while a call may begin in it that is to be given in fragments."""
        self._fragments: ArgumentStream | None = None
        self._size = 0
        """How much of the JSON has been looked at for fragments."""
        if self.bare:
            self._state = self._in_bare_start

    def begin_call(self, begun: str) -> tuple[ToolCall, int] | None:
        """The call that a block has begun with, once that is certain, and where in the JSON its arguments start.

        As it is, it knows JSON that begins with the name, followed by an object of arguments.
        """
        found = _CALL_BEGUN.match(begun)
        return (ToolCall(found["name"]), found.end()) if found else None

    def _in_bare_start(self, text: str, last: bool) -> str | None:
        waiting = self._held.undecided(text, last)
        if waiting is None:
            return None
        begins = waiting.lstrip()
        if not last and any(mark.startswith(begins) for mark in self.call_marks):
            self._held.add(waiting)
            return None
        if begins[:1] in ("{", "[") and not begins.startswith(self.call_marks):
            self._begin_value("", waiting[: len(waiting) - len(begins)])
            return begins
        self._state = self._in_text
        return waiting

    def _may_open(self, text: str, last: bool) -> bool:
        """Whether an opening mark begins the text, or still may."""
        return any(text.startswith(mark) or (not last and mark.startswith(text)) for mark in self.call_marks)

    def _begin_block(self) -> None:
        self._state = self._in_head

    def _in_head(self, text: str, last: bool) -> str | None:
        waiting = self._held.undecided(text, last)
        if waiting is None:
            return None
        end = re.compile(self.head_pattern).match(waiting).end()  # type: ignore[union-attr]  # matches ""
        if end == len(waiting) and not last:
            self._held.add(waiting)
            return None
        if waiting[end : end + 1] in ("{", "["):
            self._begin_value(self._mark, waiting[:end])
            return waiting[end:]
        self._say(self._mark)
        self._state = self._in_text
        return waiting

    # The JSON

    def _begin_value(self, mark: str, head: str) -> None:
        self._mark = mark
        self.head = head
        self._scanner = JsonScanner()
        self._beginning_of_call = "" if self.stream_arguments else None
        self._fragments = None
        self._size = 0
        self._state = self._in_value

    def _in_value(self, text: str, last: bool) -> str | None:
        self._held.add(text)
        in_fragments = self._fragments is not None or self._beginning_of_call is not None
        decided = self._scanner.feed(text, last or in_fragments)
        if in_fragments:
            self._give_fragment(text)
        if not decided:
            if last:
                self._give_up(self._held.take(), cut=True)
            return None
        raw = self._held.take()
        if self._scanner.end is not None:
            self._end_value(raw[: self._scanner.end], "")
            return raw[self._scanner.end :]
        if self._scanner.lacks_only_brace and self.close and self._scanner.failed_at is not None:
            self._value = raw[: self._scanner.failed_at]
            self._state = self._in_missing_brace
            return raw[self._scanner.failed_at :]
        end = resume(self._scanner, raw, self.close)
        self._give_up(raw[:end])
        return raw[end:]

    def _end_value(self, value: str, missing: str) -> None:
        if self._end_call(value + missing) if self._fragments is not None else self._read(value + missing):
            self._state = self._in_tail
        else:
            self._give_up(value)

    def _give_up(self, value: str, *, cut: bool = False) -> None:
        """The JSON so far is no call, so it is content, unless some of it has been given as a call."""
        if self._fragments is None:
            say = self._say_cut if cut else self._say
            say(self._mark + self.head + value)
        self._state = self._in_text

    # Its arguments in fragments

    def _give_fragment(self, text: str) -> None:
        """Give what is certain after the next piece of JSON; what the scanner says is none of it is not looked at."""
        end, start = self._scanner.end or self._scanner.failed_at, self._size
        self._size += len(text)
        text = text if end is None else text[: max(0, end - start)]
        if self._fragments is not None:
            if certain := self._fragments.feed(text):
                self._out.append(CallFragment(arguments=certain))
            return
        begun = self._beginning_of_call = (self._beginning_of_call or "") + text
        found = self.begin_call(begun[:_MAX_BEGINNING])
        if found is None:
            self._beginning_of_call = begun if len(begun) < _MAX_BEGINNING else None
            return
        call, at = found
        self._fragments = ArgumentStream()
        self._out.append(CallFragment(call.name, self._fragments.feed(begun[at:]), call.id))

    def _end_call(self, block: str) -> bool:
        """Give the last fragment of a call that is whole; nothing where it turned out to be another one."""
        assert self._fragments is not None  # noqa: S101  # the caller looked
        given = self._fragments.given
        out, self._out = self._out, []
        self._read(block)
        calls, self._out = self._out, out
        call = calls[0] if len(calls) == 1 else None
        if isinstance(call, ToolCall) and call.arguments.startswith(given) and call.arguments != given:
            self._out.append(CallFragment(arguments=call.arguments[len(given) :]))
        return True

    def _in_missing_brace(self, text: str, last: bool) -> str | None:
        """All of an object is there but its last brace: it counts if the block is over here, else it is broken."""
        waiting = self._held.take() + text
        marks = (self.close, *self.call_marks)
        if waiting.startswith(marks):
            self._end_value(self._value, "}")
        elif not last and any(mark.startswith(waiting) for mark in marks):
            self._held.add(waiting)
            return None
        else:
            self._give_up(self._value)
        return waiting

    # What follows the JSON

    def _in_tail(self, text: str, last: bool) -> str | None:
        waiting = self._held.undecided(text, last)
        if waiting is None:
            return None
        patterns = _patterns(self.open, self.close, self.group, "```" in self.head)
        closed = patterns.tail.match(waiting)
        if closed is not None:
            by_close = bool(self.close) and waiting.endswith(self.close, 0, closed.end())
            self._state = self._in_group_end if self.group and by_close else self._in_text
            return waiting[closed.end() :]
        if last and patterns.tail_cut.fullmatch(waiting) and not waiting.isspace():
            return None  # half a closing mark
        if not last and patterns.tail_begun.fullmatch(waiting):
            self._held.add(waiting)
            return None
        more = patterns.separator.match(waiting)
        if more is not None and not self._may_open(waiting.lstrip(), last):
            self._begin_value("", more.group())
            return waiting[more.end() :]
        self._state = self._in_text
        return waiting


class _Patterns(NamedTuple):
    """What is expected around JSON. The `…_begun` ones match all beginnings too."""

    tail: re.Pattern[str]
    """Up to the closing mark (or the group's), with the braces and the fence that may come before it."""
    tail_begun: re.Pattern[str]
    """All beginnings of that, and of another opening mark."""
    tail_cut: re.Pattern[str]
    """What is left of a closing mark where the text was cut."""
    separator: re.Pattern[str]
    """What may stand before more JSON."""


@lru_cache(maxsize=256)
def _patterns(open_mark: str, close: str, group: tuple[str, str] | None, fenced: bool) -> _Patterns:
    start, end = group or ("", "")
    closers = [mark for mark in (close, end) if mark]
    closer = "|".join(map(re.escape, closers)) or "(?!)"
    half_closer = "|".join(map(mark_pattern, closers)) or ""
    braces = rf"\s*+(?:[}}\]]{{1,{_MOST_BRACES}}}+\s*+)?" if closers else r"\s*+"
    fence, half_fence = (r"(?:```\s*+)?", r"(?:```\s*+|`{1,2}\Z)?") if fenced else ("", "")
    openers = "|".join(mark_pattern(mark) for mark in (open_mark, start) if mark)
    return _Patterns(
        tail=re.compile(rf"{braces}{fence}(?:{closer})"),
        tail_begun=re.compile(rf"{braces}{half_fence}(?:{half_closer})|\s*+(?:{openers})|\s*+[;,]?\s*+"),
        tail_cut=re.compile(rf"\s*+{half_fence}(?:{half_closer})"),
        separator=re.compile(r"\s*+[;,]?\s*+(?=[{\[])"),
    )
