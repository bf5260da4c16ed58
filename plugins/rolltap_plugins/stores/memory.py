"""The store "memory": logs in lists, gone when the process ends."""

from collections.abc import Sequence
from itertools import count, dropwhile, islice
from typing import Any

from rolltap import ConfigError, Store, hookimpl
from rolltap.record import Entry, SessionCreated

KIND = "memory"


class _Log:
    def __init__(self, number: int) -> None:
        self.number = number
        self.entries: list[Entry] = []


class MemoryStore(Store):
    """Keeps entries as they are given; they must not be changed afterwards."""

    def __init__(self) -> None:
        self._logs: dict[str, _Log] = {}
        self._numbers = count(1)

    async def append(self, session: str, entry: Entry) -> int:
        """See `Store.append`."""
        log = self._logs.get(session)
        if log is None:
            if not isinstance(entry, SessionCreated):
                raise LookupError(f"session {session!r} has no log")
            log = self._logs[session] = _Log(next(self._numbers))
        log.entries.append(entry)
        return len(log.entries)

    async def read(self, session: str, after: int = 0) -> Sequence[tuple[int, Entry]]:
        """See `Store.read`."""
        log = self._logs.get(session)
        return list(enumerate(log.entries[after:], start=after + 1)) if log else []

    async def sessions(self, *, after: int = 0, limit: int = 1000) -> Sequence[tuple[int, str]]:
        """See `Store.sessions`. The logs' order is that of their numbers."""
        numbered = ((log.number, session) for session, log in self._logs.items())
        return list(islice(dropwhile(lambda pair: pair[0] <= after, numbered), limit))

    async def delete(self, session: str) -> None:
        """See `Store.delete`."""
        self._logs.pop(session, None)


@hookimpl
def create_store(kind: str, options: dict[str, Any]) -> Store | None:
    """The memory store, which has no options."""
    if kind != KIND:
        return None
    if options:
        name, value = next(iter(options.items()))
        raise ConfigError(
            f'[store] {name} = {value!r}: the store "memory" has no options. Remove the key, or choose a kind '
            'that keeps its sessions somewhere, such as "sqlite".'
        )
    return MemoryStore()


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"create_store": [KIND]}
