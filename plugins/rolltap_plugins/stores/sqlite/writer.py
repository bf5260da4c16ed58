"""The one thread that writes: what is asked of it while it commits becomes its next transaction."""

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue

from rolltap import StoreError

log = logging.getLogger(__name__)

_GATHER_S = 0.001
"""How long an idle writer waits for company of the first task: a transaction for several costs little more than for one."""

_KNOWN = 10_000
"""Of how many sessions the last number is remembered."""


@dataclass(frozen=True, slots=True)
class Append:
    """An entry to be kept; `opens` where it may begin a log."""

    session: str
    entry: bytes
    opens: bool


@dataclass(frozen=True, slots=True)
class Delete:
    """A log to be forgotten."""

    session: str


Task = Append | Delete
Result = int | Exception


def failure(error: sqlite3.Error) -> StoreError:
    """What SQLite's error means, without the file's path, which clients must not see."""
    name = getattr(error, "sqlite_errorname", "")
    reasons = {
        "SQLITE_FULL": "there is no room left on its disk",
        "SQLITE_READONLY": "its file has become read-only",
        "SQLITE_CORRUPT": "its file is damaged",
        "SQLITE_NOTADB": "its file is damaged",
        "SQLITE_TOOBIG": "the entry is larger than SQLite can keep",
        "SQLITE_BUSY": "another program holds its file locked",
        "SQLITE_LOCKED": "another program holds its file locked",
    }
    found = next((reason for known, reason in reasons.items() if name.startswith(known)), None)
    return StoreError(
        f'the store "sqlite" failed: {found or "its file cannot be read or written"} ({name or error})'
    )


class Writer:
    """Takes tasks on the event loop, writes them in its thread, and answers on the loop.

    Tasks of one millisecond go to the thread together, and so do all that come while it is writing: however many
    there are, there is one transaction and one wake-up for them.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._transactions = _Transactions(connect)
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Task, asyncio.Future[int]]] = []
        self._busy = False
        self._closed = False
        self._idle: asyncio.Future[None] | None = None
        self._failing = False
        self._batches: SimpleQueue[list[tuple[Task, asyncio.Future[int]]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rolltap-sqlite-writer", daemon=True)
        self._thread.start()

    def put(self, task: Task) -> asyncio.Future[int]:
        """The task's answer, which comes once the task is committed."""
        if self._closed:
            raise StoreError('the store "sqlite" is closed')
        answer: asyncio.Future[int] = self._loop.create_future()
        self._waiting.append((task, answer))
        if not self._busy:
            self._busy = True
            self._loop.call_later(_GATHER_S, self._hand_over)
        return answer

    async def close(self) -> None:
        """Write what was asked for, then end the thread."""
        self._closed = True
        if self._busy:
            self._idle = self._loop.create_future()
            await self._idle
        self._batches.put(None)
        await asyncio.to_thread(self._thread.join)

    def _hand_over(self) -> None:
        batch, self._waiting = self._waiting, []
        self._batches.put(batch)

    def _settle(self, batch: list[tuple[Task, asyncio.Future[int]]], results: Sequence[Result]) -> None:
        if self._waiting:
            self._hand_over()
        else:
            self._busy = False
            if self._idle is not None:
                self._idle.set_result(None)
        for (_, answer), result in zip(batch, results, strict=True):
            if answer.done():
                continue
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)
        self._note(results)

    def _note(self, results: Sequence[Result]) -> None:
        """Log where the store begins to fail and where it works again: not each of thousands of failures."""
        failed = next((result for result in results if isinstance(result, StoreError)), None)
        if failed is not None and not self._failing:
            log.error("%s: sessions cannot be kept until this is put right", failed)
        elif failed is None and self._failing:
            log.warning('the store "sqlite" works again')
        self._failing = failed is not None

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            results = self._transactions.write([task for task, _ in batch])
            with suppress(RuntimeError):  # the loop is closed: nobody waits for an answer any more
                self._loop.call_soon_threadsafe(self._settle, batch, results)
        self._transactions.close()


@dataclass(slots=True)
class _Log:
    number: int
    last: int


class _Transactions:
    """What the thread does. The last numbers it remembers are right because no other process writes to the file."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._known: dict[str, _Log] = {}

    def write(self, tasks: Sequence[Task]) -> list[Result]:
        """One result a task. Where a transaction fails, each task gets one of its own: one may be at fault alone."""
        try:
            return self._transaction(tasks)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is an answer; the thread goes on
            if len(tasks) == 1:
                return [failure(error) if isinstance(error, sqlite3.Error) else error]
        return [result for task in tasks for result in self.write([task])]

    def close(self) -> None:
        """Bring all into the main file and close it."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.close()

    def _transaction(self, tasks: Sequence[Task]) -> list[Result]:
        connection = self._connection = self._connection or self._connect()
        try:
            connection.execute("BEGIN IMMEDIATE")
            results = [self._done(connection, task) for task in tasks]
            connection.execute("COMMIT")
        except BaseException:
            self._known.clear()
            self._roll_back(connection)
            raise
        return results

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._connection = None
            connection.close()

    def _done(self, connection: sqlite3.Connection, task: Task) -> Result:
        found = self._log(connection, task.session)
        if isinstance(task, Delete):
            if found is not None:
                del self._known[task.session]
                connection.execute("DELETE FROM entries WHERE session = ?", (found.number,))
                connection.execute("DELETE FROM sessions WHERE number = ?", (found.number,))
            return 0
        if found is None:
            if not task.opens:
                return LookupError(f"session {task.session!r} has no log")
            row = connection.execute("INSERT INTO sessions (id) VALUES (?)", (task.session,))
            found = self._known[task.session] = _Log(row.lastrowid or 0, 0)
        found.last += 1
        connection.execute("INSERT INTO entries VALUES (?, ?, ?)", (found.number, found.last, task.entry))
        return found.last

    def _log(self, connection: sqlite3.Connection, session: str) -> _Log | None:
        found = self._known.get(session)
        if found is None:
            row = connection.execute(
                "SELECT number, (SELECT max(seq) FROM entries WHERE session = number) FROM sessions WHERE id = ?",
                (session,),
            ).fetchone()
            if row is None:
                return None
            if len(self._known) >= _KNOWN:
                self._known.clear()
            found = self._known[session] = _Log(*row)
        return found
