"""Tests for parsers: the same text, cut in many ways, must always be read the same."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from rolltap.bases.parsers import CallFragment, Reasoning
from rolltap.types.chat import ToolCall

Piece = str | Reasoning | ToolCall


class Reader(Protocol):
    """A tool parser, a reasoning parser, or the reader that puts both together."""

    def feed(self, text: str, /) -> Sequence[Piece]:
        """Take the next piece of text."""

    def finish(self) -> Sequence[Piece]:
        """The text is over."""


def read_pieces(reader: Reader, pieces: Sequence[str]) -> list[Piece]:
    """What the reader makes of the pieces: neighbouring text joined, thinking likewise, and fragments of a call."""
    joined: list[Piece] = []
    came = [item for piece in pieces for item in reader.feed(piece)]
    for item in (*came, *reader.finish()):
        before = joined[-1] if joined else None
        if isinstance(item, str) and isinstance(before, str):
            joined[-1] = before + item
        elif isinstance(item, Reasoning) and isinstance(before, Reasoning):
            joined[-1] = Reasoning(before.text + item.text)
        elif isinstance(item, CallFragment) and not item.name and isinstance(before, ToolCall):
            joined[-1] = ToolCall(before.name, before.arguments + item.arguments, before.id)
        elif isinstance(item, CallFragment):
            joined.append(ToolCall(item.name, item.arguments, item.id))
        elif item not in ("", Reasoning("")):
            joined.append(item)
    return joined


def cuts(text: str, *, seed: int = 7) -> Iterator[list[str]]:
    """Ways to cut a text: into characters, into equal pieces, once at each place, and 20 times at random."""
    for size in (1, 2, 3, 5, 8, 13):
        yield [text[start : start + size] for start in range(0, len(text), size)]
    for place in range(1, len(text)):
        yield [text[:place], text[place:]]
    chance = random.Random(seed)  # noqa: S311  # not for secrets
    for _ in range(20):
        pieces, start = [], 0
        while start < len(text):
            size = chance.randint(1, 9)
            pieces.append(text[start : start + size])
            start += size
        yield pieces


def assert_every_cut(
    make_reader: Callable[[], Reader], text: str, expected: Sequence[Piece] | None = None
) -> list[Piece]:
    """Read the text whole and cut in all the ways of `cuts`; return what was read.

    :param make_reader: makes a new parser for each reading, such as a `ToolParser`'s class.
    :param expected: what the whole text must be read as, if given: neighbouring text joined.
    :raises AssertionError: with the first cut that was read otherwise, and both readings.
    """
    whole = read_pieces(make_reader(), [text])
    if expected is not None and whole != list(expected):
        raise AssertionError(
            f"the text {text!r} was read as\n{_shown(whole)}\nand not as\n{_shown(expected)}"
        )
    for pieces in cuts(text):
        streamed = read_pieces(make_reader(), pieces)
        if streamed != whole:
            raise AssertionError(
                f"cut into {pieces!r} it was read as\n{_shown(streamed)}\nbut whole as\n{_shown(whole)}"
            )
    return whole


def _shown(pieces: Sequence[Piece]) -> str:
    return "\n".join(f"    {piece!r}" for piece in pieces) or "    nothing"
