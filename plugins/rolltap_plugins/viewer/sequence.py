"""One node's sequence, opened for looking at: kinds of tokens, pieces of text, values along it."""

import math
from array import array
from collections.abc import Sequence
from itertools import groupby, islice
from typing import Any

from rolltap import NodeView
from rolltap_plugins.viewer.pieces import LONGEST_CHARACTER, Decode, pieces
from rolltap_plugins.viewer.segments import GENERATED, PROMPT, TRAINED, Run, Segment, Segmenter

MASKED = -100
PLOT_POINTS = 1500
UNLIKELY = math.log(0.05)


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
        self.runs = _runs(self._kinds)
        self._messages = whole.messages

    def __len__(self) -> int:
        return len(self.tokens)

    def window(self, start: int, end: int) -> dict[str, Any]:
        """The tokens from `start` to before `end`."""
        ids = list(self.tokens[start:end])
        before = self.tokens[max(0, start - LONGEST_CHARACTER) : start]
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

    def segments(self) -> list[Segment]:
        """The sequence cut by messages, and where the model's own words begin and end."""
        return Segmenter(self._decode, self.tokens).segments(self.runs, self._messages)

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


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 5)


def _runs(kinds: bytes) -> list[Run]:
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
