"""The text of single tokens, and where in a sequence a text stands."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

Decode = Callable[[Sequence[int]], str]

LONGEST_CHARACTER = 8
"""Tokens that may make one character together: an emoji of four bytes, with room for joiners."""

BLOCK = 512


def pieces(decode: Decode, ids: Sequence[int], before: Sequence[int] = ()) -> list[str]:
    """The text of each token, as it stands after the one before it.

    Where several tokens make one character, the first has it and the others have "". Decoders that drop a leading
    space are asked with the tokens `before`, so that the space is seen.
    """
    found: list[str] = []
    suffixes = (list(before[-size:]) for size in range(1, min(LONGEST_CHARACTER, len(before)) + 1))
    character = next((suffix for suffix in suffixes if "\ufffd" not in decode(suffix)), [])
    while len(found) < len(ids):
        at = len(found)
        text, size = "", 0
        while not size or (_cut(text) and size < LONGEST_CHARACTER and at + size < len(ids)):
            size += 1
            text = _after(decode, character, ids[at : at + size])
        if _cut(text):  # no character begins here
            size, text = 1, _after(decode, character, ids[at : at + 1])
        character = list(ids[at : at + size])
        found += [text, *[""] * (size - 1)]
    return found


def _cut(text: str) -> bool:
    """Whether a text ends in the middle of a character."""
    return text.endswith("\ufffd")


def _after(decode: Decode, character: Sequence[int], ids: Sequence[int]) -> str:
    """The text of ids after those of the character before: a part of that one would change what they are decoded to."""
    if not character:
        return decode(ids)
    start = decode(character)
    whole = decode([*character, *ids])
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
