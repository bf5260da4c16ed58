"""How much goes upstream at once: a fair gate before each backend."""

import asyncio

from rolltap.bases.backends import BackendHandle
from rolltap.errors import Overloaded


class Gate:
    """Lets `max_in_flight` requests through to one backend (`async with`); up to `max_queued` more wait their turn."""

    def __init__(self, handle: BackendHandle, *, max_in_flight: int, max_queued: int) -> None:
        self._handle = handle
        self._slots = asyncio.Semaphore(max_in_flight)
        self._max_queued = max_queued
        self._queued = 0

    async def __aenter__(self) -> None:
        """Wait for a place, first come first served. Raises `Overloaded` where too many wait already."""
        if self._slots.locked() and self._queued >= self._max_queued:
            raise Overloaded(
                f"backend {self._handle.name} has {self._handle.in_flight} requests in flight and {self._queued} "
                "waiting; come back later, or raise max_queued",
                retry_after=1,
            )
        self._queued += 1
        try:
            await self._slots.acquire()
        finally:
            self._queued -= 1
        self._handle.in_flight += 1

    async def __aexit__(self, *_: object) -> None:
        """Make room for the next one."""
        self._handle.in_flight -= 1
        self._slots.release()
