"""The store "sqlite": logs in a file. One server, one file; nothing that was answered for is lost with the process.

SQLite comes with Python, and its write-ahead log gives what is needed: one writer that commits whole transactions,
readers that never wait for it. The standard module in threads of our own is used rather than an asyncio wrapper,
which hops to a thread for each statement; here a thread is woken once for all appends of a millisecond.

`durability = "process"` (SQLite's `synchronous = NORMAL`): a killed process loses nothing that was answered for; a power
cut may lose the last seconds, and leaves a sound file. `"power"` (`FULL`): each transaction is on the disk before it is
answered for.

The file belongs to one process (`shared` is False): its lock is held from `start` to `close`. Several processes could
write to one such file, as every transaction is `BEGIN IMMEDIATE`; for that the lock would be taken by the process that
starts them, the writer would forget its last numbers between transactions, and claims would be kept in a table.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from msgspec import Struct

from rolltap import Store, StoreError, hookimpl, read_options
from rolltap.record import Entry, SessionCreated, decode_entry, encode_entry
from rolltap_plugins.stores.sqlite.files import Durability, FileLock, connect, prepare
from rolltap_plugins.stores.sqlite.writer import Append, Delete, Writer, failure

KIND = "sqlite"

_READERS = 4

_Result = TypeVar("_Result")


class Options(Struct, frozen=True, kw_only=True):
    """What `[store]` may say besides its kind."""

    path: str = "rolltap.db"
    durability: Durability = "process"


class _Open:
    """What there is while the store is open."""

    def __init__(self, path: Path) -> None:
        self.lock = FileLock(path)
        try:
            prepare(path)
            self.connections = [connect(path) for _ in range(_READERS)]
        except BaseException:
            self.lock.release()
            raise
        self.free: SimpleQueue[sqlite3.Connection] = SimpleQueue()
        for connection in self.connections:
            self.free.put(connection)
        self.readers = ThreadPoolExecutor(_READERS, thread_name_prefix="rolltap-sqlite-reader")

    def close(self) -> None:
        self.readers.shutdown()
        for connection in self.connections:
            connection.close()
        self.lock.release()


class SqliteStore(Store):
    """Keeps entries in a SQLite file."""

    durable = True

    def __init__(self, path: str | Path, durability: Durability = "process") -> None:
        self._path = Path(path).expanduser().absolute()
        self._durability: Durability = durability
        self._open: _Open | None = None
        self._writer: Writer | None = None

    async def start(self) -> None:
        """See `Store.start`. Raises `ConfigError` for a file that is another server's, another program's or too new."""
        self._open = await asyncio.to_thread(_Open, self._path)
        self._writer = Writer(lambda: connect(self._path, self._durability))

    async def close(self) -> None:
        """See `Store.close`."""
        writer, self._writer = self._writer, None
        opened, self._open = self._open, None
        if writer is not None:
            await writer.close()
        if opened is not None:
            await asyncio.to_thread(opened.close)

    async def append(self, session: str, entry: Entry) -> int:
        """See `Store.append`."""
        task = Append(session, encode_entry(entry), isinstance(entry, SessionCreated))
        return await self._running(self._writer).put(task)

    async def read(self, session: str, after: int = 0) -> Sequence[tuple[int, Entry]]:
        """See `Store.read`."""

        def entries(connection: sqlite3.Connection) -> list[tuple[int, Entry]]:
            rows = connection.execute(
                "SELECT seq, entry FROM entries JOIN sessions ON session = number"
                " WHERE id = ? AND seq > ? ORDER BY seq",
                (session, after),
            ).fetchall()
            return [(seq, decode_entry(entry)) for seq, entry in rows]

        return await self._read(entries)

    async def sessions(self, *, after: int = 0, limit: int = 1000) -> Sequence[tuple[int, str]]:
        """See `Store.sessions`."""
        return await self._read(
            lambda connection: connection.execute(
                "SELECT number, id FROM sessions WHERE number > ? ORDER BY number LIMIT ?", (after, limit)
            ).fetchall()
        )

    async def delete(self, session: str) -> None:
        """See `Store.delete`."""
        await self._running(self._writer).put(Delete(session))

    async def _read(self, question: Callable[[sqlite3.Connection], _Result]) -> _Result:
        opened = self._running(self._open)

        def ask() -> _Result:
            connection = opened.free.get()
            try:
                return question(connection)
            except sqlite3.Error as error:
                raise failure(error) from error
            finally:
                opened.free.put(connection)

        return await asyncio.get_running_loop().run_in_executor(opened.readers, ask)

    @staticmethod
    def _running(part: _Result | None) -> _Result:
        if part is None:
            raise StoreError('the store "sqlite" is closed')
        return part


@hookimpl
def create_store(kind: str, options: dict[str, Any]) -> Store | None:
    """A store of this kind: `path`, and `durability` ("process" or "power")."""
    if kind != KIND:
        return None
    read = read_options(options, Options, "[store]")
    return SqliteStore(read.path, read.durability)


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"create_store": [KIND]}
