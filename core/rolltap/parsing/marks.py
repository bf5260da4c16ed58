"""Finding marks such as `<tool_call>` in text that comes in pieces."""

import re
from functools import lru_cache


class Marks:
    """A few marks to look for at once. None may be part of another: the first one seen would depend on the cut."""

    def __init__(self, *marks: str) -> None:
        for mark in marks:
            if not mark or any(mark in other for other in marks if other is not mark):
                raise ValueError(f"the mark {mark!r} is empty or part of another one in {marks!r}")
        self.search = re.compile("|".join(map(re.escape, marks))).search
        """The first whole mark: `search(text)`, `search(text, start)`."""
        self.may_begin = re.compile(
            "[" + re.escape("".join(sorted({mark[0] for mark in marks}))) + "]"
        ).search
        """Any character that a mark begins with: None says that the text has no mark, nor the beginning of one."""
        beginnings = {mark[:size] for mark in marks for size in range(1, len(mark))}
        longest_first = sorted(beginnings, key=lambda beginning: (-len(beginning), beginning))
        self._begun = re.compile(f"(?:{'|'.join(map(re.escape, longest_first)) or '(?!)'})\\Z").search
        self._longest = max(map(len, marks))

    def held(self, text: str) -> int:
        """From where the end of `text` may be the beginning of a mark; its length where it is none."""
        begun = self._begun(text, max(0, len(text) - self._longest + 1))
        return len(text) if begun is None else begun.start()


@lru_cache(maxsize=256)
def marks_of(*marks: str) -> Marks:
    """The `Marks`, made once for each set."""
    return Marks(*marks)


def mark_pattern(mark: str) -> str:
    """A regular expression for the mark, or at the end of the text for any beginning of it, the empty one included."""
    beginnings = "".join(f"(?:{re.escape(char)}" for char in mark) + ")?" * len(mark)
    return rf"(?:{re.escape(mark)}|{beginnings}\Z)"


class Held:
    """Pieces of text that wait for a decision, put together when it falls."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[str] = []

    def add(self, text: str) -> None:
        """Wait with this as well."""
        self._parts.append(text)

    def take(self) -> str:
        """All that waited; nothing waits any more."""
        text = "".join(self._parts)
        self._parts.clear()
        return text

    def undecided(self, text: str, last: bool) -> str | None:
        """All that waited and `text`; None, having kept it, where more may come and white space decides nothing."""
        if text.isspace() and not last:
            self._parts.append(text)
            return None
        return self.take() + text
