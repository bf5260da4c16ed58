"""The store "memory": logs in lists, gone when the process ends."""

from collections.abc import Sequence
from typing import Any

from rolltap import ConfigError, Entry, Store, hookimpl

KIND = "memory"


class MemoryStore(Store):
    """Keeps entries as they are given; they must not be changed afterwards."""

    def __init__(self) -> None:
        self._logs: dict[str, list[Entry]] = {}

    async def append(self, session: str, entry: Entry) -> int:
        """See `Store.append`."""
        log = self._logs.setdefault(session, [])
        log.append(entry)
        return len(log)

    async def read(self, session: str, after: int = 0) -> Sequence[tuple[int, Entry]]:
        """See `Store.read`."""
        log = self._logs.get(session, ())
        return list(enumerate(log[after:], start=after + 1))

    async def sessions(self) -> Sequence[str]:
        """See `Store.sessions`."""
        return list(self._logs)

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
            "that keeps its sessions somewhere: a plugin can create one."
        )
    return MemoryStore()


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"create_store": [KIND]}
