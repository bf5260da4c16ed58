"""What stores subclass. A session is an append-only log of entries; a store keeps such logs."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from rolltap.types.ledger import Entry


class Store(ABC):
    """Keeps each session's log. An entry that `append` has answered for survives whatever the store promises.

    A failure of the store itself (disk full, database gone) is a `StoreError`.
    """

    durable: ClassVar[bool] = False
    """Whether its logs survive this process. If so, calls are announced in the log before they are sent."""

    shared: ClassVar[bool] = False
    """Whether several processes may use the same store at once."""

    async def start(self) -> None:
        """Open it: called once before the server listens."""

    async def close(self) -> None:
        """Close it: called once when the server ends."""

    @abstractmethod
    async def append(self, session: str, entry: Entry) -> int:
        """Add an entry to the session's log; return its number (1, 2, 3, …) once it is kept.

        A `SessionCreated` begins a log. Raises `LookupError` for any other entry of a session that has none.
        """

    @abstractmethod
    async def read(self, session: str, after: int = 0) -> Sequence[tuple[int, Entry]]:
        """The entries numbered above `after`, in order; empty for an unknown session."""

    @abstractmethod
    async def sessions(self, *, after: str = "", limit: int = 1000) -> Sequence[str]:
        """A page of the ids of all sessions that have a log, in the order of their creation.

        `after`: the last id of the page before; "" for the first page.
        """

    @abstractmethod
    async def delete(self, session: str) -> None:
        """Forget the session's log; nothing happens where there is none."""

    @abstractmethod
    async def claim(self, key: str, ttl_s: float) -> bool:
        """Whether the caller is the first to ask for `key` within `ttl_s` seconds, over all processes."""
