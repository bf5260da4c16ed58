"""The store "memory": logs in lists, gone when the process ends."""

import time
from collections.abc import Sequence
from typing import Any

from rolltap import ConfigError, Store, hookimpl
from rolltap.record import Entry, SessionCreated

KIND = "memory"


class MemoryStore(Store):
    """Keeps entries as they are given; they must not be changed afterwards."""

    def __init__(self) -> None:
        self._logs: dict[str, list[Entry]] = {}
        self._claims: dict[str, float] = {}

    async def append(self, session: str, entry: Entry) -> int:
        """See `Store.append`."""
        if isinstance(entry, SessionCreated):
            self._logs.setdefault(session, [])
        log = self._logs[session]
        log.append(entry)
        return len(log)

    async def read(self, session: str, after: int = 0) -> Sequence[tuple[int, Entry]]:
        """See `Store.read`."""
        log = self._logs.get(session, ())
        return list(enumerate(log[after:], start=after + 1))

    async def sessions(self, *, after: str = "", limit: int = 1000) -> Sequence[str]:
        """See `Store.sessions`."""
        ids = [*self._logs]
        start = ids.index(after) + 1 if after in self._logs else 0
        return ids[start : start + limit]

    async def delete(self, session: str) -> None:
        """See `Store.delete`."""
        self._logs.pop(session, None)

    async def claim(self, key: str, ttl_s: float) -> bool:
        """See `Store.claim`."""
        now = time.monotonic()
        self._claims = {name: until for name, until in self._claims.items() if until > now}
        return self._claims.setdefault(key, now + ttl_s) == now + ttl_s


@hookimpl
def create_store(kind: str, options: dict[str, Any]) -> Store | None:
    """The memory store, which has no options."""
    if kind != KIND:
        return None
    if options:
        name, value = next(iter(options.items()))
        raise ConfigError(
            f'[store] {name} = {value!r}: the store "memory" has no options. Remove the key, or choose a kind '
            "that keeps its sessions somewhere: a plugin can create one."
        )
    return MemoryStore()


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"create_store": [KIND]}
