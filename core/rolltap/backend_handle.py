"""A configured backend at run time: how it is, and how much it is asked at once."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rolltap.bases.backends import Backend, BackendView
from rolltap.errors import Overloaded

log = logging.getLogger(__name__)

MAX_COOL_DOWN_S = 60.0
"""The longest that a failing backend is left out before it is tried again."""


class BackendHandle:
    """One configured backend of a model.

    `name` is unique in its model; `url` is what a session pins ("" where the backend has no address); `plugin` made
    it; it may be silent for `time_limit_s` within an answer (None: for as long as it likes). `view` is what plugins see.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        name: str,
        kind: str,
        model: str,
        url: str = "",
        plugin: str = "",
        time_limit_s: float | None = None,
        max_in_flight: int = 512,
        max_queued: int = 4096,
        may_just_stop: bool = False,
    ) -> None:
        self.backend = backend
        self.name = name
        self.kind = kind
        self.model = model
        self.url = url
        self.plugin = plugin or type(backend).__name__
        self.time_limit_s = time_limit_s
        self.may_just_stop = may_just_stop
        """Whether an answer that ends without a finish reason, or without anything, is a whole one."""
        self.in_flight = 0
        self.queued = 0
        self.last_error: str | None = None
        self.view: BackendView = _View(self)
        self._max_queued = max_queued
        self._slots = asyncio.Semaphore(max_in_flight)
        self._failures = 0
        self._retry_at = 0.0
        self._said: set[str] = set()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold one of its places, first come first served. Raises `Overloaded` where too many wait already."""
        if self._slots.locked() and self.queued >= self._max_queued:
            raise Overloaded(
                f"backend {self.name} has {self.in_flight} requests in flight and {self.queued} waiting; "
                "come back later, or raise max_queued",
                retry_after=1,
            )
        self.queued += 1
        try:
            await self._slots.acquire()
        finally:
            self.queued -= 1
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
            self._slots.release()

    @property
    def retry_in_s(self) -> float:
        """Seconds until it may be tried again; 0.0 where it may be asked now."""
        return max(0.0, self._retry_at - time.monotonic())

    def warn_once(self, shortcoming: str) -> None:
        """Log what is unsafe about it, the first time that shows."""
        if shortcoming not in self._said:
            self._said.add(shortcoming)
            log.warning("backend %s of %s %s", self.name, self.model, shortcoming)

    def succeeded(self) -> None:
        """It answered: no cool-down any more."""
        self._failures = 0
        self._retry_at = 0.0
        self.last_error = None

    def failed(self, reason: str) -> None:
        """It could not be reached or used: left out for a while, longer each time in a row."""
        self._failures += 1
        self.last_error = reason
        self._retry_at = time.monotonic() + min(MAX_COOL_DOWN_S, 2.0 ** (self._failures - 1))

    def __repr__(self) -> str:
        return f"<BackendHandle {self.name} of {self.model}, {self.in_flight} in flight>"


class _View(BackendView):
    __slots__ = ("_handle",)

    def __init__(self, handle: BackendHandle) -> None:
        self._handle = handle

    @property
    def name(self) -> str:
        return self._handle.name

    @property
    def kind(self) -> str:
        return self._handle.kind

    @property
    def model(self) -> str:
        return self._handle.model

    @property
    def url(self) -> str:
        return self._handle.url

    @property
    def healthy(self) -> bool:
        return self._handle.retry_in_s == 0.0

    @property
    def retry_in_s(self) -> float:
        return self._handle.retry_in_s

    @property
    def in_flight(self) -> int:
        return self._handle.in_flight

    @property
    def queued(self) -> int:
        return self._handle.queued

    @property
    def last_error(self) -> str | None:
        return self._handle.last_error

    def __repr__(self) -> str:
        return f"<backend {self.name} of {self.model}, {self.in_flight} in flight>"
