"""The text of single tokens, and where in a sequence a text stands."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

Decode = Callable[[Sequence[int]], str]

LONGEST_CHARACTER = 8
"""Tokens that may make one character together: an emoji of four bytes, with room for joiners."""

BLOCK = 512


def pieces(decode: Decode, ids: Sequence[int], before: int | None = None) -> list[str]:
    """The text of each token, as it stands after the one before it.

    Where several tokens make one character, the first has it and the others have "". Decoders that drop a leading
    space are asked with the token before, so that the space is seen.
    """
    found: list[str] = []
    while len(found) < len(ids):
        at = len(found)
        previous = ids[at - 1] if at else before
        text = _after(decode, previous, ids[at : at + 1])
        size = 1
        while text.endswith("\ufffd") and size < LONGEST_CHARACTER and at + size < len(ids):
            size += 1
            text = _after(decode, previous, ids[at : at + size])
        if text.endswith("\ufffd"):  # no character begins here
            size, text = 1, _after(decode, previous, ids[at : at + 1])
        found += [text, *[""] * (size - 1)]
    return found


def _after(decode: Decode, previous: int | None, ids: Sequence[int]) -> str:
    if previous is None:
        return decode(ids)
    start = decode([previous])
    whole = decode([previous, *ids])
    return whole[len(start) :] if start and whole.startswith(start) else decode(ids)


class Places:
    """Which token of a sequence holds a character of its text. The text is decoded in blocks, not token by token."""

    def __init__(self, decode: Decode, ids: Sequence[int]) -> None:
        self._decode = decode
        self._ids = ids
        blocks = [decode(ids[start : start + BLOCK]) for start in range(0, len(ids), BLOCK)]
        self.text = "".join(blocks)
        self._starts = [0, *accumulate(len(block) for block in blocks)]

    def token_at(self, offset: int) -> int:
        """The number of the token that holds the character at `offset`."""
        block = max(0, min(bisect_right(self._starts, offset) - 1, len(self._starts) - 2))
        start = block * BLOCK
        low, high = 0, min(BLOCK, len(self._ids) - start)
        wanted = offset - self._starts[block]
        while low < high:
            middle = (low + high) // 2
            if len(self._decode(self._ids[start : start + middle + 1])) <= wanted:
                low = middle + 1
            else:
                high = middle
        return start + low
