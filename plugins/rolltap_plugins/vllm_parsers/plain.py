"""How much of a text is content whatever follows, for a format that is known only by its parser."""

import re

_MARKUP = re.compile(r"\w*+(?:[<\[\]{|]|```)")
"""Where markup of any of vLLM's formats may start: their marks and bare JSON begin so, some after a word."""
_UNDECIDED = re.compile(r"(?:\w++|`{1,2})\Z")


class PlainText:
    """Keeps a text that comes in pieces, and says what of it is certainly no markup."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._given: list[str] = []
        self._held = ""
        self._met_markup = False

    @property
    def text(self) -> str:
        """All that was fed."""
        return "".join(self._parts)

    @property
    def given(self) -> str:
        """All that `feed` returned."""
        return "".join(self._given)

    def feed(self, text: str) -> str:
        """Take the next piece; give what is certain now."""
        self._parts.append(text)
        if self._met_markup:
            return ""
        waiting = self._held + text
        markup = _MARKUP.search(waiting)
        undecided = markup or _UNDECIDED.search(waiting)
        end = undecided.start() if undecided else len(waiting)
        self._met_markup = markup is not None
        self._held = waiting[end:]
        self._given.append(waiting[:end])
        return waiting[:end]


def rest_of(whole: str, given: str) -> str:
    """What of `whole` is still to be given, where white space around it says nothing.

    All of it where `given` is no part of it: a parser that leaves the text before calls out of its content.
    """
    if whole.startswith(given):
        return whole[len(given) :]
    told, wanted = given.strip(), whole.lstrip()
    if wanted.startswith(told):
        return wanted[len(told) :].lstrip() if given[-1:].isspace() else wanted[len(told) :]
    return "" if told.startswith(wanted.rstrip()) else whole
