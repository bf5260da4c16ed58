"""One node's sequence, opened for looking at: kinds of tokens, roles in the prompt, values along it."""

import math
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, islice, pairwise
from typing import Any

from rolltap import NodeView
from rolltap_plugins.viewer.pieces import Decode, Places, pieces

PROMPT, GENERATED, TRAINED = 0, 1, 2
"""Kinds of tokens: what the model was sent, what it generated and is masked here, what is trained on here."""

MASKED = -100
PLOT_POINTS = 1500

BLOCK = 256
"""Tokens that a page shows or hides together."""

LONGEST_OPENING = 16
"""Tokens of a prompt that only open the model's turn, such as `<|im_start|>assistant`."""

UNLIKELY = math.log(0.05)

_OPENS = re.compile(r"<[^<>\s]*(?:start|begin|header|role|turn|user|assistant|system|tool)[^<>\s]*>|\[INST\]")


class OpenNode:
    """What is asked of a node page by page. `owned` has the mask that trainers get, `whole` all that was generated."""

    def __init__(self, owned: NodeView, whole: NodeView, decode: Decode) -> None:
        trained, generated = owned.packed, whole.packed
        self._decode = decode
        self.tokens: array[int] = generated.tokens
        self._logprobs: array[float] = generated.logprobs
        self._versions = whole.versions
        self._kinds = bytes(
            TRAINED if mine != MASKED else GENERATED if made != MASKED else PROMPT
            for mine, made in zip(trained.masked, generated.masked, strict=True)
        )
        self._lines: dict[int, bool] = {}
        self.runs = _runs(self._kinds)
        self._messages = whole.messages

    def __len__(self) -> int:
        return len(self.tokens)

    def window(self, start: int, end: int) -> dict[str, Any]:
        """The tokens from `start` to before `end`."""
        ids = list(self.tokens[start:end])
        before = self.tokens[start - 1] if start > 0 else None
        kinds = list(self._kinds[start:end])
        return {
            "start": start,
            "ids": ids,
            "pieces": pieces(self._decode, ids, before),
            "kinds": kinds,
            "logprobs": [
                None if kind == PROMPT or math.isnan(value) else round(value, 6)
                for kind, value in zip(kinds, self._logprobs[start:end], strict=True)
            ],
            "versions": _spans(self._versions[start:end]),
        }

    def segments(self) -> list[dict[str, Any]]:
        """The sequence cut where its kind changes, and inside the prompt where another message begins.

        The few tokens of the prompt that open the model's turn go with what it generated.
        """
        places = Places(self._decode, self.tokens)
        marks = list(message_starts(places, self._messages))
        found: list[dict[str, Any]] = []
        for start, end, kind in self.runs:
            inside = (
                [start, *(at for at, _ in marks if start < at < end), end] if kind == PROMPT else [start, end]
            )
            for first, last in pairwise(inside):
                role = next((name for at, name in reversed(marks) if at <= first), "prompt")
                self._add_segment(found, first, last, kind, role if kind == PROMPT else "assistant")
        return found

    def _add_segment(self, found: list[dict[str, Any]], start: int, end: int, kind: int, role: str) -> None:
        last = found[-1] if found else {"kind": None, "role": ""}
        small = min(end, last.get("end", 0)) - max(0, last.get("start", 0)) <= LONGEST_OPENING
        if kind != PROMPT and last["kind"] == PROMPT and last["role"] == "assistant" and small:
            start = found.pop()["start"]
        elif kind == PROMPT and last["kind"] in {GENERATED, TRAINED} and role == "assistant":
            text = self._decode(self.tokens[start:end])
            if len(text) < 80 and not _OPENS.search(text):  # what ends the model's turn
                last["end"] = end
                return
        found.append(self._segment(start, end, kind, role))

    def _segment(self, start: int, end: int, kind: int, role: str) -> dict[str, Any]:
        beginning = self._decode(self.tokens[start : min(end, start + 60)])
        segment = {"start": start, "end": end, "kind": kind, "role": role, "preview": beginning[:200]}
        return {**segment, "cuts": self._cuts(start, end)}

    def _cuts(self, start: int, end: int) -> list[tuple[int, bool]]:
        """Where to cut a long segment into blocks: after a line's end where one is near. With each whether it is one."""
        found = []
        at = start
        while end - at > 2 * BLOCK:
            near = range(at + BLOCK // 2, at + 2 * BLOCK)
            line = next((place + 1 for place in near if self._ends_line(self.tokens[place])), None)
            at = line or at + BLOCK
            found.append((at, line is not None))
        return found

    def _ends_line(self, token: int) -> bool:
        if token not in self._lines:
            self._lines[token] = self._decode([token]).endswith("\n")
        return self._lines[token]

    def surprises(self) -> list[int]:
        """Where generated tokens stand that the model itself held for unlikely."""
        found = (
            place
            for start, end, kind in self.runs
            if kind != PROMPT
            for place in range(start, end)
            if self._logprobs[place] < UNLIKELY
        )
        return list(islice(found, 2000))

    def plot(self) -> dict[str, Any]:
        """The logprobs of generated tokens along the sequence: mean and least of each of many slices."""
        runs = [
            [(at, self._logprobs[at]) for at in range(start, end) if not math.isnan(self._logprobs[at])]
            for start, end, kind in self.runs
            if kind != PROMPT
        ]
        values = [value for run in runs for _, value in run]
        size = max(1, math.ceil(len(values) / PLOT_POINTS))
        slices: list[list[tuple[int, float]]] = []
        for run in runs:
            slices += [run[start : start + size] for start in range(0, len(run), size)]
            if run:
                slices.append([(run[-1][0] + 1, math.nan)])  # so that no line is drawn to the next run
        return {
            "position": [part[0][0] for part in slices],
            "mean": [_rounded(sum(value for _, value in part) / len(part)) for part in slices],
            "least": [_rounded(min(value for _, value in part)) for part in slices],
            "mean_of_all": _rounded(sum(values) / len(values)) if values else None,
            "slice": size,
        }

    def output_text(self, generated: int) -> str:
        """The raw text of the last `generated` tokens, which are the node's own output."""
        return self._decode(self.tokens[len(self) - generated :]) if generated else ""

    def piece_at(self, place: int) -> str:
        """The text of one token."""
        before = self.tokens[place - 1] if place else None
        return pieces(self._decode, list(self.tokens[place : place + 1]), before)[0]


def message_starts(places: Places, messages: Sequence[Mapping[str, Any]]) -> Iterable[tuple[int, str]]:
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


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 5)


def _runs(kinds: bytes) -> list[tuple[int, int, int]]:
    found = []
    start = 0
    for kind, group in groupby(kinds):
        end = start + sum(1 for _ in group)
        found.append((start, end, kind))
        start = end
    return found


def _spans(values: Sequence[int | str | None]) -> list[tuple[int, int | str | None]]:
    """Equal neighbours as (how many, value): versions seldom change."""
    return [(sum(1 for _ in group), value) for value, group in groupby(values)]
