"""What stores subclass. A session is an append-only log of entries; a store keeps such logs."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from rolltap.types.record import Entry


class Store(ABC):
    """Keeps each session's log. An entry that `append` has answered for survives whatever the store promises."""

    shared: bool = False
    """Whether several processes may use the same store at once."""

    async def start(self) -> None:
        """Open it: called once before the server listens."""

    async def close(self) -> None:
        """Close it: called once when the server ends."""

    @abstractmethod
    async def append(self, session: str, entry: Entry) -> int:
        """Add an entry to the session's log; return its number (1, 2, 3, …) once it is kept."""

    @abstractmethod
    async def read(self, session: str, after: int = 0) -> Sequence[tuple[int, Entry]]:
        """The entries numbered above `after`, in order; empty for an unknown session."""

    @abstractmethod
    async def sessions(self) -> Sequence[str]:
        """The ids of all sessions that have a log."""

    @abstractmethod
    async def delete(self, session: str) -> None:
        """Forget the session's log; nothing happens where there is none."""
