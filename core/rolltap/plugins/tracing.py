"""What a request's hooks did: who was asked, who answered, how long it took. Off unless somebody looks."""

from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter
from typing import Any

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

_trace: ContextVar[Trace | None] = ContextVar("rolltap_trace", default=None)

current = _trace.get
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
    sizes = {
        name: len(value)
        for name, value in arguments.items()
        if isinstance(value, Sized) and not isinstance(value, str | bytes)
    }
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
