"""Kills a process that writes to the store "sqlite", again and again: `python tests/store_kills.py FOLDER ROUNDS`.

Each round forks a writer, lets it append to several sessions at once for some milliseconds, kills it with SIGKILL, and
looks into the file: every entry that the writer was answered for must be there as it was, numbered without a gap, and
SQLite must find nothing wrong. All rounds use one file. Prints one line of JSON.
"""

import asyncio
import json
import os
import random
import signal
import sqlite3
import sys
import time
from pathlib import Path

from rolltap.testing import store_entry
from rolltap_plugins.stores.sqlite import SqliteStore

SESSIONS = [f"session{number}" for number in range(4)]


def entry(session: str, number: int):
    return store_entry(session, number, size=number * 37 % 5000)


async def write(path: Path, answered: int, first: int) -> None:
    """Append until killed; a line for each answer."""
    store = SqliteStore(path)
    await store.start()

    async def append(session: str, number: int) -> None:
        seq = await store.append(session, entry(session, number))
        os.write(answered, f"{session} {seq} {number}\n".encode())

    async def fill(session: str, writer: int) -> None:
        for number in range(first + writer, first + 1_000_000, 3):
            await append(session, number)

    for session in SESSIONS:
        if not await store.read(session):
            await append(session, 0)
    await asyncio.gather(*(fill(session, writer) for session in SESSIONS for writer in range(3)))


def killed_writer(path: Path, first: int, lives_s: float) -> list[tuple[str, int, int]]:
    """What the writer was answered for before it was killed."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        asyncio.run(write(path, writes, first))
        os._exit(1)
    os.close(writes)
    with os.fdopen(reads, "rb") as answers:
        first_line = answers.readline()
        time.sleep(lives_s)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        lines = [first_line, *answers.readlines()]
    return [
        (session.decode(), int(seq), int(number))
        for session, seq, number in (line.split() for line in lines if line.endswith(b"\n"))
    ]


async def look(path: Path, kept: dict[tuple[str, int], int]) -> tuple[int, int]:
    """How many of the answered entries are missing or differ, and how many entries the file has."""
    store, lost, there = SqliteStore(path), 0, 0
    await store.start()
    for session in SESSIONS:
        log = dict(await store.read(session))
        assert list(log) == list(range(1, len(log) + 1)), "a gap"
        there += len(log)
        lost += sum(
            log.get(seq) != entry(session, number) for (name, seq), number in kept.items() if name == session
        )
    await store.close()
    return lost, there


def main(folder: Path, rounds: int) -> None:
    path, kept = folder / "rolltap.db", dict[tuple[str, int], int]()
    lost = damaged = there = 0
    for each in range(rounds):
        for session, seq, number in killed_writer(path, 1 + each * 1_000_000, random.uniform(0, 0.03)):
            assert (session, seq) not in kept, "a number was given twice"
            kept[session, seq] = number
        with sqlite3.connect(path) as connection:
            damaged += connection.execute("PRAGMA integrity_check").fetchone()[0] != "ok"
        connection.close()
        missing, there = asyncio.run(look(path, kept))
        lost += missing
    result = {"kills": rounds, "answered": len(kept), "kept": there, "lost": lost, "damaged": damaged}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
