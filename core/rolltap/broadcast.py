"""Telling every subscription of what is recorded."""

import asyncio
from collections.abc import AsyncIterator

from rolltap.errors import RolltapError
from rolltap.types.ledger import Event

_MOST_WAITING = 10_000
"""Events that a subscription may lag behind before it is ended."""


class Broadcast:
    """Gives each event to all who have subscribed."""

    def __init__(self) -> None:
        self._subscribers: set[asyncio.Queue[Event | None]] = set()

    def publish(self, event: Event) -> None:
        """Tell every subscription of an entry."""
        for queue in [*self._subscribers]:
            if queue.qsize() >= _MOST_WAITING:
                self._subscribers.discard(queue)
                queue.put_nowait(None)
            else:
                queue.put_nowait(event)

    def subscribe(self, *, session: str | None = None) -> AsyncIterator[Event]:
        """Every entry from now on as it is recorded, of one session or of all.

        Raises `RolltapError` where the reader falls too far behind.
        """
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._subscribers.add(queue)
        return self._events(queue, session)

    async def _events(
        self, queue: "asyncio.Queue[Event | None]", session: str | None
    ) -> AsyncIterator[Event]:
        try:
            while True:
                event = await queue.get()
                if event is None:
                    raise RolltapError(
                        f"this subscription was ended: it lagged {_MOST_WAITING} events behind"
                    )
                if session is None or event.session == session:
                    yield event
        finally:
            self._subscribers.discard(queue)
