"""What stores subclass. A session is an append-only log of entries; a store keeps such logs.

What every store promises, and `rolltap.testing.StoreConformance` checks:

- An entry that `append` has answered for is kept as the store's class says (`durable`), and is read by every
  `read` that begins after the answer. An append that failed or was cancelled may be in the log or not; it is
  never there in part.
- A session's entries are numbered 1, 2, 3, … without a gap, in the order in which they were kept, whoever
  appends. Only `SessionCreated` opens a log: what comes after `delete` is refused, so a late call cannot bring
  half a session back.
- Entries are values: a store keeps and returns them equal to what it was given.
- Where the store itself fails (no room, no connection), its methods raise `StoreError`, and work again once the
  cause is gone. A wrong option, or data that it must not touch, is a `ConfigError` of `create_store` or `start`.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from rolltap.types.ledger import Entry


class Store(ABC):
    """Keeps each session's log."""

    durable: ClassVar[bool] = False
    """Whether logs survive the server's process. If so, calls are announced in the log before they are sent."""

    shared: ClassVar[bool] = False
    """Whether several processes may use the same data at once; such a store overrides `claim`."""

    _taken: "_Claims | None" = None

    async def start(self) -> None:
        """Open it: called before the server listens, and again after `close` where it is to be used once more."""

    async def close(self) -> None:
        """Close it: called when the server ends."""

    @abstractmethod
    async def append(self, session: str, entry: Entry) -> int:
        """Add an entry to the session's log; return its number (1, 2, 3, …) once it is kept.

        :raises LookupError: the session has no log, and the entry is no `SessionCreated`.
        """

    @abstractmethod
    async def read(self, session: str, after: int = 0) -> Sequence[tuple[int, Entry]]:
        """The entries numbered above `after`, in order; empty for an unknown session."""

    @abstractmethod
    async def sessions(self, *, after: int = 0, limit: int = 1000) -> Sequence[tuple[int, str]]:
        """A page of the sessions that have a log: pairs of a number and an id, in the order of creation.

        `after` is the last number of the page before. Numbers only grow and are never given twice, so that paging goes
        on where it was also when the sessions of that page are deleted meanwhile. An empty page is the end.
        """

    @abstractmethod
    async def delete(self, session: str) -> None:
        """Forget the session's log; nothing happens where there is none."""

    async def claim(self, key: str, ttl_s: float) -> bool:
        """True for the first who asks for the key, and False for all others until `ttl_s` seconds have passed.

        This one, kept in memory, is right for a store that one process uses.
        """
        if self._taken is None:
            self._taken = _Claims()
        return self._taken.take(key, ttl_s)


class _Claims:
    """Keys that are taken for a time."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._full = 1024

    def take(self, key: str, ttl_s: float) -> bool:
        now = time.monotonic()
        if self._until.get(key, now) > now:
            return False
        if len(self._until) >= self._full:
            self._until = {each: until for each, until in self._until.items() if until > now}
            self._full = max(1024, 2 * len(self._until))
        self._until[key] = now + ttl_s
        return True
