"""The store "sqlite": its file, its failures, and what a kill leaves."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

import store_kills
from rolltap import ConfigError, StoreError
from rolltap.testing import store_entry
from rolltap_plugins.stores import sqlite
from rolltap_plugins.stores.sqlite import files


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rolltap.db"


@pytest.fixture
async def store(path):
    store = sqlite.SqliteStore(path)
    await store.start()
    await store.append("a", store_entry("a"))
    yield store
    await store.close()


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 3 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


async def opened_and_closed(path, **options):
    store = sqlite.SqliteStore(path, **options)
    await store.start()
    await store.close()


def pragma(path, name):
    connection = sqlite3.connect(path)
    try:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]
    finally:
        connection.close()


class TestOptions:
    def test_other_kinds_are_not_its_own(self):
        assert sqlite.create_store("memory", {}) is None

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"pth": "x"}, r"\[store\]: unknown option 'pth'; did you mean .path"),
            ({"durability": "none"}, r"option 'durability' is 'none': allowed are 'process', 'power'"),
            ({"path": 3}, r"option 'path' is 3: Expected `str`"),
        ],
    )
    def test_wrong_option_is_refused_by_name(self, options, message):
        with pytest.raises(ConfigError, match=message):
            sqlite.create_store("sqlite", options)

    @pytest.mark.parametrize(("durability", "synchronous"), [("process", 1), ("power", 2)])
    def test_durability_is_sqlites_synchronous(self, path, durability, synchronous):
        connection = files.connect(path, durability)
        assert connection.execute("PRAGMA synchronous").fetchone() == (synchronous,)
        connection.close()


class TestFile:
    async def test_is_for_its_owner_alone(self, path, store):
        assert {each.stat().st_mode & 0o077 for each in path.parent.iterdir()} == {0}

    async def test_says_whose_it_is_and_which_format_it_has(self, path, store):
        assert pragma(path, "application_id") == files.APPLICATION_ID
        assert pragma(path, "user_version") == len(files.FORMATS)
        assert pragma(path, "journal_mode") == "wal"

    async def test_newer_one_is_refused_and_left_alone(self, path):
        await opened_and_closed(path)
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
        before = path.read_bytes()
        with pytest.raises(ConfigError, match=r"rolltap\.db'.*format 99, made by a newer rolltap.*up to 1"):
            await opened_and_closed(path)
        assert path.read_bytes() == before

    async def test_older_one_is_migrated(self, path, monkeypatch):
        store = sqlite.SqliteStore(path)
        await store.start()
        await store.append("a", store_entry("a"))
        await store.close()
        step = "ALTER TABLE sessions ADD COLUMN label TEXT NOT NULL DEFAULT 'none';"
        monkeypatch.setattr(files, "FORMATS", (*files.FORMATS, step))
        await store.start()
        assert list(await store.read("a")) == [(1, store_entry("a"))]
        assert await store.append("a", store_entry("a", 1)) == 2
        await store.close()
        assert pragma(path, "user_version") == 2
        connection = sqlite3.connect(path)
        assert connection.execute("SELECT label FROM sessions").fetchall() == [("none",)]
        connection.close()

    async def test_migration_that_fails_leaves_the_older_one(self, path, monkeypatch):
        await opened_and_closed(path)
        with monkeypatch.context() as newer:
            newer.setattr(
                files, "FORMATS", (*files.FORMATS, "CREATE TABLE half (x); CREATE TABLE sessions (x);")
            )
            with pytest.raises(ConfigError, match=r"cannot be used: table sessions already exists"):
                await opened_and_closed(path)
        assert pragma(path, "user_version") == 1
        await opened_and_closed(path)

    async def test_another_programs_database_is_refused_and_left_alone(self, path):
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE theirs (x)")
        connection.close()
        before = path.read_bytes()
        with pytest.raises(ConfigError, match=r"rolltap\.db'.*another program's database"):
            await opened_and_closed(path)
        assert path.read_bytes() == before

    async def test_other_file_is_refused_and_left_alone(self, path):
        path.write_bytes(b"not a database" * 100)
        with pytest.raises(ConfigError, match=r"rolltap\.db'.*file is not a database"):
            await opened_and_closed(path)
        assert path.read_bytes() == b"not a database" * 100

    async def test_folder_that_is_missing_is_named(self, tmp_path):
        with pytest.raises(ConfigError, match=r"missing/rolltap\.db'.*No such file or directory"):
            await opened_and_closed(tmp_path / "missing" / "rolltap.db")

    async def test_read_only_disk_is_refused_at_the_start(self, small_disk):
        await opened_and_closed(small_disk / "rolltap.db")
        await asyncio.to_thread(subprocess.run, ["mount", "-o", "remount,ro", small_disk], check=True)
        with pytest.raises(ConfigError, match=r"rolltap\.db'.*Read-only file system"):
            await opened_and_closed(small_disk / "rolltap.db")

    async def test_space_of_deleted_sessions_is_used_again(self, path, store):
        async def fill(session):
            await store.append(session, store_entry(session))
            for number in range(1, 30):
                await store.append(session, store_entry(session, number, size=100_000))

        await fill("b")
        await store.delete("b")
        await fill("c")
        await store.close()
        assert path.stat().st_size < 4_500_000


class TestOneServer:
    async def test_second_one_is_refused_by_name(self, path, store):
        with pytest.raises(
            ConfigError, match=rf"in use by another rolltap server \(process {os.getpid()} on "
        ):
            await opened_and_closed(path)
        assert await store.append("a", store_entry("a", 1)) == 2

    async def test_file_is_free_once_it_is_closed(self, path, store):
        await store.close()
        await opened_and_closed(path)

    async def test_refused_start_does_not_hold_the_file(self, path, monkeypatch):
        path.write_bytes(b"not a database" * 100)
        with pytest.raises(ConfigError):
            await opened_and_closed(path)
        path.unlink()
        await opened_and_closed(path)


class TestWriting:
    async def test_appends_of_one_turn_are_one_transaction(self, path, monkeypatch):
        statements = []

        def traced(*arguments):
            connection = files.connect(*arguments)
            connection.set_trace_callback(statements.append)
            return connection

        monkeypatch.setattr(sqlite, "connect", traced)
        store = sqlite.SqliteStore(path)
        await store.start()
        answers = await asyncio.gather(
            *(store.append(f"s{number}", store_entry(f"s{number}")) for number in range(300))
        )
        assert answers == [1] * 300
        await store.close()
        assert sum("INSERT INTO entries" in statement for statement in statements) == 300
        assert sum(statement.startswith("COMMIT") for statement in statements) <= 2

    async def test_entry_that_cannot_be_kept_fails_alone(self, store):
        broken = "\ud800"
        answers = await asyncio.gather(
            store.append("a", store_entry("a", 1)),
            store.append(broken, store_entry("b")),
            store.append("a", store_entry("a", 2)),
            return_exceptions=True,
        )
        assert isinstance(answers[1], UnicodeEncodeError)
        assert answers[::2] == [2, 3]
        assert [seq for seq, _ in await store.read("a")] == [1, 2, 3]

    async def test_reads_do_not_wait_for_writes(self, path, store):
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        append = asyncio.ensure_future(store.append("a", store_entry("a", 1)))
        started = time.monotonic()
        assert list(await store.read("a")) == [(1, store_entry("a"))]
        assert [name for _, name in await store.sessions()] == ["a"]
        assert time.monotonic() - started < 1
        assert not append.done()
        other.execute("ROLLBACK")
        other.close()
        assert await append == 2

    async def test_more_sessions_than_it_remembers(self, store, monkeypatch):
        monkeypatch.setattr("rolltap_plugins.stores.sqlite.writer._KNOWN", 3)
        for number in range(10):
            await store.append(f"s{number}", store_entry(f"s{number}"))
        for number in range(10):
            assert await store.append(f"s{number}", store_entry(f"s{number}", 1)) == 2

    async def test_closed_store_says_so(self, store):
        await store.close()
        for ask in (
            store.append("a", store_entry("a")),
            store.read("a"),
            store.sessions(),
            store.delete("a"),
        ):
            with pytest.raises(StoreError, match='the store "sqlite" is closed'):
                await ask


class TestFailing:
    async def test_full_disk_is_said_and_room_is_used(self, small_disk, caplog):
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(1_500_000))
        store = sqlite.SqliteStore(small_disk / "rolltap.db")
        await store.start()
        kept = [store_entry("a")]
        await store.append("a", kept[0])
        for number in range(1, 1000):
            entry = store_entry("a", number, size=20_000)
            try:
                await store.append("a", entry)
            except StoreError as error:
                refusal = error
                break
            kept.append(entry)
        assert 10 < len(kept) < 500
        assert "no room left on its disk (SQLITE_FULL)" in str(refusal)
        assert str(small_disk) not in str(refusal)
        outcomes = await asyncio.gather(
            *(store.append("a", store_entry("a", number, size=30_000)) for number in range(2000, 2009)),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [StoreError] * 9
        assert list(await store.read("a")) == list(enumerate(kept, 1))

        ballast.unlink()
        kept.append(store_entry("a", 3000, size=20_000))
        assert await store.append("a", kept[-1]) == len(kept)
        assert list(await store.read("a")) == list(enumerate(kept, 1))
        await store.close()
        assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
        assert pragma(small_disk / "rolltap.db", "integrity_check") == "ok"

    async def test_full_disk_is_refused_at_the_start(self, small_disk):
        (small_disk / "ballast").write_bytes(bytes(3 * 1024 * 1024 - 16384))
        with pytest.raises(ConfigError, match=r"rolltap\.db'.*(full|No space left|I/O error)"):
            await opened_and_closed(small_disk / "rolltap.db")

    async def test_damaged_file_is_said(self, path, store):
        for number in range(1, 200):
            await store.append("a", store_entry("a", number, size=5000))
        await store.close()
        data = bytearray(path.read_bytes())
        data[4096:] = b"\xff" * (len(data) - 4096)
        path.write_bytes(data)
        await store.start()
        with pytest.raises(StoreError, match=r"its file is damaged \(SQLITE_CORRUPT"):
            await store.read("a")
        with pytest.raises(StoreError, match=r"its file is damaged \(SQLITE_CORRUPT"):
            await store.append("a", store_entry("a", 1))

    async def test_file_that_another_program_holds_is_said(self, path, store, monkeypatch):
        monkeypatch.setattr(sqlite, "connect", lambda *given: _impatient(files.connect(*given)))
        await store.close()
        await store.start()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"another program holds its file locked \(SQLITE_BUSY"):
            await store.append("a", store_entry("a", 1))
        other.execute("ROLLBACK")
        other.close()
        assert await store.append("a", store_entry("a", 1)) == 2


def _impatient(connection):
    connection.execute("PRAGMA busy_timeout = 50")
    return connection


def test_killed_process_loses_nothing_that_was_answered_for(tmp_path):
    script = Path(store_kills.__file__)
    done = subprocess.run(
        [sys.executable, script, tmp_path, "60"], check=True, capture_output=True, text=True, timeout=300
    )
    result = json.loads(done.stdout)
    assert result["kills"] == 60
    assert result["answered"] > 1000
    assert (result["lost"], result["damaged"]) == (0, 0), result
