"""Helpers for texts: messages that people read, and what answers can hold."""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known word that is most like `word`; None where none is like it (0: any, 1: only the same)."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)), None)


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean "hermes"?` for a message's end, or "" where nothing known is like `word`."""
    close = nearest(word, known)
    return f'; did you mean "{close}"?' if close else ""


def well_formed(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair, which no UTF-8 can hold: no answer, no tokenizer.

    JSON can spell them, and Python's `json` reads them, such as where an upstream wrote `\\ud83d` without its other half.
    """
    if not text or text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
