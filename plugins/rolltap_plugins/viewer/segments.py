"""A sequence cut into the parts that people know: the system's words, the user's, a tool's, the model's."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct

from rolltap_plugins.viewer.pieces import Decode, Places

PROMPT, GENERATED, TRAINED = 0, 1, 2
"""Kinds of tokens: what the model was sent, what it generated and is masked here, what is trained on here."""

BLOCK = 256
"""Tokens that a page shows or hides together."""

LONGEST_OPENING = 16
"""Tokens of a prompt that only open the model's turn, such as `<|im_start|>assistant`."""

LONGEST_CLOSING = 80
"""Characters of a prompt that only end the model's turn."""

_OPENS = re.compile(r"<[^<>\s]*(?:start|begin|header|role|turn|user|assistant|system|tool)[^<>\s]*>|\[INST\]")

Run = tuple[int, int, int]
"""Neighbours of one kind: where they start, where they end, the kind."""


class Segment(Struct):
    """A part of a sequence: of one message, or of what the model generated."""

    start: int
    end: int
    kind: int
    role: str
    preview: str = ""
    cuts: list[tuple[int, bool]] = []
    """Where a page may cut it into blocks, and of each place whether a line ends there."""


class Segmenter:
    """Cuts one sequence where its kind changes, and inside the prompt where another message begins."""

    def __init__(self, decode: Decode, ids: Sequence[int]) -> None:
        self._decode = decode
        self._ids = ids
        self._line_ends: dict[int, bool] = {}

    def segments(self, runs: Iterable[Run], messages: Sequence[Mapping[str, Any]]) -> list[Segment]:
        """The segments, which cover the whole sequence. The template's marks around what the model generated go with it."""
        starts = list(message_starts(Places(self._decode, self._ids), messages))
        found: list[Segment] = []
        for run in runs:
            for part in _by_message(run, starts):
                self._add(found, part)
        for segment in found:
            beginning = self._ids[segment.start : min(segment.end, segment.start + 60)]
            segment.preview = self._decode(beginning)[:200]
            segment.cuts = list(self._cuts(segment.start, segment.end))
        return found

    def _add(self, found: list[Segment], part: Segment) -> None:
        last = found[-1] if found else None
        if last is not None and part.kind != PROMPT and last.kind == PROMPT and last.role == "assistant":
            if last.end - last.start <= LONGEST_OPENING:
                part.start = found.pop().start
        elif last is not None and part.kind == PROMPT and last.kind != PROMPT and part.role == "assistant":
            text = self._decode(self._ids[part.start : part.end])
            if len(text) <= LONGEST_CLOSING and not _OPENS.search(text):
                last.end = part.end
                return
        found.append(part)

    def _cuts(self, start: int, end: int) -> Iterator[tuple[int, bool]]:
        at = start
        while end - at > 2 * BLOCK:
            near = range(at + BLOCK // 2, at + 2 * BLOCK)
            line = next((place + 1 for place in near if self._ends_line(self._ids[place])), None)
            at = line or at + BLOCK
            yield at, line is not None

    def _ends_line(self, token: int) -> bool:
        if token not in self._line_ends:
            self._line_ends[token] = self._decode([token]).endswith("\n")
        return self._line_ends[token]


def _by_message(run: Run, starts: Sequence[tuple[int, str]]) -> Iterator[Segment]:
    start, end, kind = run
    if kind != PROMPT:
        yield Segment(start, end, kind, "assistant")
        return
    for first, last in pairwise([start, *(at for at, _ in starts if start < at < end), end]):
        role = next((name for at, name in reversed(starts) if at <= first), "prompt")
        yield Segment(first, last, kind, role)


def message_starts(places: Places, messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    """Where each message begins in a rendered prompt, and its role.

    Templates differ, so the messages' own texts are looked for, one after the other. What stands between two of them
    belongs to the later one from its opening mark on.
    """
    cursor = 0
    for number, message in enumerate(messages):
        text = text_of(message).strip()
        at = places.text.find(text, cursor) if text else -1
        if at < 0:
            continue
        mark = _OPENS.search(places.text, cursor, at)
        start = 0 if number == 0 else mark.start() if mark else cursor
        yield (places.token_at(start) if start else 0), str(message["role"])
        cursor = at + len(text)
    mark = _OPENS.search(places.text, cursor)
    if mark:
        yield places.token_at(mark.start()), "assistant"


def text_of(message: Mapping[str, Any]) -> str:
    """A message's text, in whichever of OpenAI's forms its content is."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content or () if part.get("type") == "text")
