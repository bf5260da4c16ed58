"""Which weights wrote which token: spans `[start, end, version]` over an output's tokens."""

from collections.abc import Sequence
from typing import Any


def version_of_each(spans: Sequence[Any] | None, num_tokens: int) -> list[int | str | None]:
    """A version for each token of an output; None where none is known.

    A version that can't be placed within its span (`[old, new]`) is written "old|new".
    """
    versions: list[int | str | None] = [None] * num_tokens
    for start, end, version in version_spans(spans, 0, num_tokens):
        versions[start:end] = [version] * (end - start)
    return versions


def version_spans(
    spans: Sequence[Any] | None, start: int, stop: int
) -> tuple[tuple[int, int, int | str], ...]:
    """The spans of an output that stands from `start` to `stop` in a sequence, as places in the sequence.

    What an engine says in another form is no span: it stays in the node's metadata.
    """
    found = []
    for span in spans or ():
        match span:
            case [int(first), int(last), version] if start + first < min(start + last, stop):
                found.append((start + first, min(start + last, stop), _known(version)))
    return tuple(found)


def _known(version: Any) -> int | str:
    """A version as one value; see `version_of_each`."""
    known: int | str = "|".join(map(str, version)) if isinstance(version, list | tuple) else version
    return known
