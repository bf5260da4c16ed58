"""What a request's hooks did: who was asked, who answered, how long it took. Off unless somebody looks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter
from typing import Any

import msgspec
from msgspec import Struct, field


class Step(Struct, kw_only=True, omit_defaults=True):
    """One hook that was asked: names, sizes and times, and nothing of what it was asked about."""

    hook: str
    plugin: str | None = None
    """Who answered, or failed; None where nobody's it was."""
    asked: int
    """How many plugins were asked, the one that answered included."""
    ms: float = 0.0
    """How long it took, waiting included."""
    failed: bool = False
    sizes: dict[str, int] = field(default_factory=dict)
    """How many things were in those of its arguments that hold several."""


Trace = list[Step]

TRACE_HEADER = "x-rolltap-trace"
_LONGEST = 6000
"""Bytes of a trace that still fit into a header, of which clients take 8 KB."""

_trace: ContextVar[Trace | None] = ContextVar("rolltap_trace", default=None)

current_trace = _trace.get
"""The trace that is being made here; None where nobody looks."""


@contextmanager
def tracing() -> Iterator[Trace]:
    """Note every hook that is asked within, tasks begun within included."""
    steps: Trace = []
    token = _trace.set(steps)
    try:
        yield steps
    finally:
        _trace.reset(token)


@contextmanager
def step(trace: Trace, hook: str, arguments: Mapping[str, Any]) -> Iterator[Step]:
    """One hook being asked: `plugin` and `asked` are the caller's to set."""
    sizes = {name: len(value) for name, value in arguments.items() if isinstance(value, list | tuple | dict)}
    made = Step(hook=hook, asked=0, sizes=sizes)
    began = perf_counter()
    try:
        yield made
    except BaseException:
        made.failed = True
        raise
    finally:
        made.ms = round((perf_counter() - began) * 1000, 3)
        trace.append(made)


def encoded(trace: Trace) -> str:
    """The trace as JSON on one line; of one that is too long for a header, the beginning, and how much is left out."""
    steps = [msgspec.json.encode(each).decode() for each in trace]
    shown, length = 0, 0
    while shown < len(steps) and length + len(steps[shown]) < _LONGEST:
        length += len(steps[shown]) + 1
        shown += 1
    more = [f'{{"left_out":{len(steps) - shown}}}'] if shown < len(steps) else []
    return f"[{','.join([*steps[:shown], *more])}]"
