"""The file of the store "sqlite": who may open it, which format it has, and its connections."""

import fcntl
import os
import socket
import sqlite3
from pathlib import Path
from typing import Literal

from rolltap import ConfigError

Durability = Literal["process", "power"]

APPLICATION_ID = 0x526F6C74
"""Marks the file as rolltap's: "Rolt" in ASCII."""

FORMATS = (
    """
    CREATE TABLE sessions (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE);
    CREATE TABLE entries (
        session INTEGER NOT NULL, seq INTEGER NOT NULL, entry BLOB NOT NULL, PRIMARY KEY (session, seq)
    );
    """,
)
"""What makes each format out of the one before; a new file goes through all of them."""

_SYNCHRONOUS = {"process": "NORMAL", "power": "FULL"}
_CHECKPOINT_PAGES = 4000
_LOG_BYTES = 64 * 1024 * 1024


class FileLock:
    """Held by the one server that uses the file; the system lets go of it when the process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        beside = path.with_name(path.name + ".lock")
        try:
            self._descriptor = os.open(beside, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise refused(path, f"{beside.name} cannot be made beside it: {error.strerror}") from None
        try:
            self._take()
        except BaseException:
            os.close(self._descriptor)
            raise

    def _take(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 200, 0).decode(errors="replace").strip()
            raise ConfigError(
                f"[store] path = {str(self._path)!r}: this file is in use by another rolltap server"
                f"{f' ({holder})' if holder else ''}. Give each server a path of its own, or let them share a "
                'store: kind = "redis".'
            ) from None
        except OSError as error:
            raise refused(self._path, f"it cannot be locked: {error.strerror}") from None
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except OSError as error:
            raise refused(self._path, f"{self._path.name}.lock beside it: {error.strerror}") from None

    def release(self) -> None:
        """Let another server have the file."""
        os.close(self._descriptor)


def refused(path: Path, why: str) -> ConfigError:
    """The error for a file that cannot be used."""
    return ConfigError(
        f"[store] path = {str(path)!r}: {why}. The store needs a file on a local disk that it may write, in a "
        "folder that exists."
    )


def connect(path: Path, durability: Durability = "process") -> sqlite3.Connection:
    """A connection with explicit transactions, for one thread at a time. Raises `sqlite3.Error`."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
    try:
        connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(path: Path) -> None:
    """Make the file, or bring it to the current format. Raises `ConfigError` where it is not for this version."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = connect(path)
    except OSError as error:
        raise refused(path, f"it cannot be opened: {error.strerror}") from None
    except sqlite3.Error as error:
        raise refused(path, f"it cannot be opened: {error}") from None
    try:
        version = _version(connection, path)
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise refused(path, "its file system has no shared memory for SQLite's write-ahead log")
        _migrate(connection, version)
    except sqlite3.Error as error:
        raise refused(path, f"it cannot be used: {error}") from None
    finally:
        connection.close()


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """The file's format, 0 for a new file; nothing is written."""
    owner: int = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if owner != APPLICATION_ID:
        if owner or version or connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise ConfigError(
                f"[store] path = {str(path)!r}: this is another program's database. Give the store a path of its own."
            )
        return 0
    if version > len(FORMATS):
        raise ConfigError(
            f"[store] path = {str(path)!r}: this file has format {version}, made by a newer rolltap; this one knows "
            f"formats up to {len(FORMATS)}. Install the newer version again, or give the store another path."
        )
    return version


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    """All steps in one transaction: a process killed at it leaves the file as it was."""
    if version == len(FORMATS):
        return
    steps = "".join(FORMATS[version:])
    connection.executescript(
        f"BEGIN IMMEDIATE; {steps} PRAGMA application_id = {APPLICATION_ID};"
        f" PRAGMA user_version = {len(FORMATS)}; COMMIT;"
    )
