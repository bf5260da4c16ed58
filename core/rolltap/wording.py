"""Helpers for messages that people read."""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known word that is most like `word`; None where none is like it (0: any, 1: only the same)."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)), None)


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean "hermes"?` for a message's end, or "" where nothing known is like `word`."""
    close = nearest(word, known)
    return f'; did you mean "{close}"?' if close else ""
