"""One rollout for a request that comes twice.

A request that comes while the same one is in flight joins it: both get the same deltas of one call. One that comes
after the first has finished is answered with the recorded completion, if the client marks it as a retry. What is kept
for that is bounded in time and number. Two requests are the same where session, path, body and idempotency key are:
a client that wants two samples of one prompt asks with `n`, or with two idempotency keys.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import NamedTuple

from rolltap.types.generation import ChatDelta, Completion, ToolCallDelta

Key = tuple[str, str, bytes, str]
"""Session, path, a hash of the body, idempotency key."""

Start = Callable[[Completion], AsyncGenerator[ChatDelta, None]]

AHEAD = 1024
"""How many deltas a call may run ahead of its fastest reader: a slow reader slows the engine, not the memory."""


class _Finished(NamedTuple):
    completion: Completion
    at: float


class _Flight:
    """A call in flight: one task reads it, every joined request gets its deltas from the first on."""

    def __init__(self, deltas: AsyncGenerator[ChatDelta, None], completion: Completion) -> None:
        self.completion = completion
        self.served = False
        """Whether somebody has got every delta."""
        self._deltas: list[ChatDelta] = []
        self._positions: dict[object, int] = {}
        self._error: BaseException | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._task = asyncio.ensure_future(self._read(deltas))

    @property
    def over(self) -> bool:
        """Whether the call has ended, well or not, or was given up."""
        return self._task.done() or self._task.cancelling() > 0

    @property
    def succeeded(self) -> bool:
        """Whether the call has ended well."""
        return self._task.done() and not self._task.cancelled() and self._error is None

    async def follow(self) -> AsyncGenerator[ChatDelta, None]:
        """Every delta from the first on, then the call's error if it had one. The last one to leave ends the call."""
        me = object()
        self._positions[me] = 0
        try:
            while True:
                at = self._positions[me]
                if at < len(self._deltas):
                    self._positions[me] = at + 1
                    self._room.set()
                    yield self._deltas[at]
                elif self._task.done():
                    break
                else:
                    self._news.clear()
                    await self._news.wait()
            if self._error is not None:
                raise self._error
        finally:
            del self._positions[me]
            self._room.set()
            if not self._positions and not self._task.done():
                self._task.cancel()

    async def _read(self, deltas: AsyncGenerator[ChatDelta, None]) -> None:
        try:
            async with aclosing(deltas):
                async for delta in deltas:
                    self._deltas.append(delta)
                    self._news.set()
                    while len(self._deltas) - max(self._positions.values(), default=0) > AHEAD:
                        self._room.clear()
                        await self._room.wait()
        except Exception as error:  # noqa: BLE001 - kept, and raised to everyone who follows
            self._error = error
        finally:
            self._news.set()


class Replays:
    """Knows the calls in flight and those that have just finished."""

    def __init__(self, *, window_s: float = 120.0, most: int = 1024) -> None:
        self._window_s = window_s
        self._most = most
        self._flights: dict[Key, _Flight] = {}
        self._finished: OrderedDict[Key, _Finished] = OrderedDict()

    async def answer(
        self, key: Key, start: Start, completion: Completion, *, retry: bool
    ) -> AsyncGenerator[ChatDelta, None]:
        """The deltas of the call that `key` names: joined, replayed, or started now.

        `completion` becomes the call's own: same id, same content.
        """
        finished = self._recent(key) if retry else None
        if finished is not None:
            _become(completion, finished)
            for delta in as_deltas(finished):
                yield delta
            return
        flight = self._flights.get(key)
        if flight is None or (flight.over and not flight.succeeded):
            original = Completion(id=completion.id, model=completion.model, created=completion.created)
            flight = self._flights[key] = _Flight(start(original), original)
        _become(completion, flight.completion)
        served = False
        try:
            async with aclosing(flight.follow()) as deltas:
                async for delta in deltas:
                    yield delta
            served = flight.served = True
        finally:
            # Who leaves early learns what was recorded, to say that it was not delivered; unless somebody has it all.
            if served or not flight.served:
                _become(completion, flight.completion)
            if flight.over and self._flights.get(key) is flight:
                del self._flights[key]
                if flight.succeeded:
                    self._keep(key, flight.completion)

    def _recent(self, key: Key) -> Completion | None:
        found = self._finished.get(key)
        return (
            found.completion if found is not None and found.at > time.monotonic() - self._window_s else None
        )

    def _keep(self, key: Key, completion: Completion) -> None:
        now = time.monotonic()
        self._finished[key] = _Finished(completion, now)
        self._finished.move_to_end(key)
        while self._finished:
            oldest = next(iter(self._finished))
            if len(self._finished) <= self._most and self._finished[oldest].at > now - self._window_s:
                break
            del self._finished[oldest]


def _become(completion: Completion, original: Completion) -> None:
    for name in completion.__struct_fields__:
        setattr(completion, name, getattr(original, name))


def as_deltas(completion: Completion) -> list[ChatDelta]:
    """A finished completion as deltas, for a client that wants it streamed."""
    deltas = []
    for choice in completion.choices:
        calls: list[ToolCallDelta] = [
            ToolCallDelta(index=number, id=call.id, name=call.name, arguments=call.arguments)
            for number, call in enumerate(choice.tool_calls)
        ]
        if choice.reasoning:
            deltas.append(ChatDelta(index=choice.index, reasoning=choice.reasoning))
        if choice.text or choice.logprobs:
            deltas.append(ChatDelta(index=choice.index, text=choice.text, logprobs=choice.logprobs))
        if calls:
            deltas.append(ChatDelta(index=choice.index, tool_calls=[*calls]))
        deltas.append(
            ChatDelta(
                index=choice.index, finish_reason=choice.finish_reason, stop_sequence=choice.stop_sequence
            )
        )
    return deltas
