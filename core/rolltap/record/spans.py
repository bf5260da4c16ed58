"""Which weights wrote which token: spans `[start, end, version]` over an output's tokens."""

from collections.abc import Sequence
from typing import Any


def version_of_each(spans: Sequence[Any] | None, num_tokens: int) -> list[int | str | None]:
    """A version for each token of an output; None where none is known.

    A version that can't be placed within its span (`[old, new]`) is written "old|new".
    """
    versions: list[int | str | None] = [None] * num_tokens
    for start, end, version in spans or ():
        known = "|".join(map(str, version)) if isinstance(version, list | tuple) else version
        versions[start:end] = [known] * (min(end, num_tokens) - start)
    return versions
