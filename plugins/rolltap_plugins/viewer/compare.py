"""Two nodes side by side: the first message and the first token in which they differ."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from rolltap_plugins.viewer.sequence import OpenNode

AROUND = 24
"""Tokens shown before and after the first that differs."""


def first_difference(ours: Sequence[Any], theirs: Sequence[Any]) -> int | None:
    """The place of the first item in which two sequences differ, also where one ends; None where they are equal."""
    missing = object()
    pairs = zip_longest(ours, theirs, fillvalue=missing)
    return next((place for place, (mine, other) in enumerate(pairs) if mine != other), None)


def difference_in_messages(
    ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """The first message that differs: its number, the names of the fields that do, and both messages."""
    place = first_difference(ours, theirs)
    if place is None:
        return None
    mine = ours[place] if place < len(ours) else None
    other = theirs[place] if place < len(theirs) else None
    fields = sorted(
        name
        for name in {**(mine or {}), **(other or {})}
        if (mine or {}).get(name) != (other or {}).get(name)
    )
    return {"index": place, "fields": fields, "a": mine, "b": other, "lengths": [len(ours), len(theirs)]}


def difference_in_ids(ours: OpenNode, theirs: OpenNode) -> dict[str, Any] | None:
    """The first token that differs, with those around it in both."""
    place = first_difference(ours.tokens, theirs.tokens)
    if place is None:
        return None
    start = max(0, place - AROUND)
    return {
        "index": place,
        "a": ours.window(start, min(len(ours), place + AROUND)),
        "b": theirs.window(start, min(len(theirs), place + AROUND)),
        "lengths": [len(ours), len(theirs)],
    }
