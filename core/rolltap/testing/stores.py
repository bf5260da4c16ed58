"""Tests for stores: what `rolltap.Store` promises, for any store of one's own.

A test class says how the store is made, and names what else the store claims to be::

    from rolltap.testing import DurableStoreConformance, StoreConformance


    class TestMyStore(DurableStoreConformance, StoreConformance):
        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda: MyStore(tmp_path / "sessions")

Each store that `make_store` returns within one test is over the same data. `SharedStoreConformance` is for stores
that several processes may use at once. `play_store` runs a given order of steps: for tests with hypothesis.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from random import Random
from typing import Literal

import pytest
import pytest_asyncio

from rolltap.bases.stores import Store
from rolltap.types.ledger import (
    DeliveryChanged,
    Entry,
    SessionCreated,
    SessionInfo,
)

MakeStore = Callable[[], Store]
Step = tuple[Literal["create", "append", "read", "list", "delete"], str]
"""What is done, and with which session."""


def store_entry(session: str, number: int = 0, *, size: int = 0) -> Entry:
    """An entry to test stores with: number 0 opens the session's log; all others differ in what they hold."""
    if number == 0:
        return SessionCreated(info=SessionInfo(uuid=session, model_name="tiny"))
    return DeliveryChanged(node_ids=(f"{session}-{number}-é" + "x" * size,), delivery="aborted")


async def play_store(store: Store, steps: Iterable[Step]) -> None:
    """Do the steps one after the other, and compare every answer with what the promises say it must be.

    :raises AssertionError: at the first answer that differs.
    """
    logs: dict[str, list[Entry]] = {}
    numbers, before = count(1), await _listed(store)
    for what, session in steps:
        log = logs.get(session)
        match what:
            case "create" | "append":
                entry = store_entry(session, 0 if what == "create" else next(numbers))
                if what == "append" and log is None:
                    with pytest.raises(LookupError):
                        await store.append(session, entry)
                else:
                    log = logs.setdefault(session, [])
                    log.append(entry)
                    assert await store.append(session, entry) == len(log), (what, session)
            case "read":
                after = next(numbers) % (len(log or ()) + 2)
                expected = list(enumerate(log or (), 1))[after:]
                assert list(await store.read(session, after)) == expected, (session, after)
            case "list":
                assert [name for name in await _listed(store) if name not in before] == list(logs)
            case "delete":
                await store.delete(session)
                logs.pop(session, None)
    for session, log in logs.items():
        assert list(await store.read(session)) == list(enumerate(log, 1)), session
        await store.delete(session)


class StoreConformance:
    """What every store promises. A subclass has the fixture `make_store`."""

    @pytest_asyncio.fixture
    async def store(self, make_store: MakeStore) -> AsyncIterator[Store]:
        """A store that is open."""
        async with _opened(make_store) as store:
            yield store

    @pytest.mark.asyncio
    async def test_claims_to_be_no_more_than_is_tested(self, store: Store) -> None:
        """A durable or shared store is tested as one."""
        assert store.durable == isinstance(self, DurableStoreConformance)
        assert store.shared == isinstance(self, SharedStoreConformance)

    @pytest.mark.asyncio
    async def test_entries_are_numbered_and_read_in_order(self, store: Store) -> None:
        """1, 2, 3, … for each session by itself, and read from any number on."""
        entries = [store_entry("a", number) for number in range(5)]
        assert [await store.append("a", entry) for entry in entries] == [1, 2, 3, 4, 5]
        assert await store.append("b", store_entry("b")) == 1
        for after in range(6):
            assert list(await store.read("a", after)) == list(enumerate(entries, 1))[after:]
        assert list(await store.read("a", after=99)) == []

    @pytest.mark.asyncio
    async def test_unknown_session_is_empty_and_leaves_no_trace(self, store: Store) -> None:
        """Reading and deleting what is not there is no error."""
        assert list(await store.read("nobody")) == []
        await store.delete("nobody")
        assert list(await store.sessions()) == []

    @pytest.mark.asyncio
    async def test_only_a_created_session_has_a_log(self, store: Store) -> None:
        """Any other entry is refused, and nothing of it is kept."""
        with pytest.raises(LookupError):
            await store.append("a", store_entry("a", 1))
        assert list(await store.read("a")) == []
        assert list(await store.sessions()) == []

    @pytest.mark.asyncio
    async def test_deleted_session_stays_gone(self, store: Store) -> None:
        """A late append does not bring it back; creating it anew begins with 1."""
        await store.append("a", store_entry("a"))
        await store.append("a", store_entry("a", 1))
        await store.delete("a")
        assert list(await store.read("a")) == []
        assert list(await store.sessions()) == []
        with pytest.raises(LookupError):
            await store.append("a", store_entry("a", 2))
        assert await store.append("a", store_entry("a")) == 1
        assert list(await store.read("a")) == [(1, store_entry("a"))]

    @pytest.mark.asyncio
    async def test_sessions_come_in_pages_in_order_of_creation(self, store: Store) -> None:
        """Each once, the pages as long as asked for."""
        names = [f"s{number * 7919 % 100:02}" for number in range(10)]
        for name in names:
            await store.append(name, store_entry(name))
        for limit in (1, 3, 10, 1000):
            assert await _listed(store, limit) == names
        await store.append(names[0], store_entry(names[0], 1))
        assert await _listed(store) == names

    @pytest.mark.asyncio
    async def test_paging_goes_on_where_a_page_was_deleted(self, store: Store) -> None:
        """A client that reads a page, deletes its sessions and asks for the next one sees every session once."""
        for number in range(7):
            await store.append(f"s{number}", store_entry(f"s{number}"))
        seen: list[str] = []
        after = 0
        while page := await store.sessions(after=after, limit=2):
            assert len(page) <= 2
            after = page[-1][0]
            for _, name in page:
                await store.delete(name)
                seen.append(name)
        assert seen == [f"s{number}" for number in range(7)]
        await store.append("late", store_entry("late"))
        assert [name for _, name in await store.sessions(after=after)] == ["late"]

    @pytest.mark.asyncio
    async def test_concurrent_appends_leave_no_gap(self, store: Store) -> None:
        """Each has a number of its own, and is read under it."""
        names = [f"s{number}" for number in range(5)]
        for name in names:
            await store.append(name, store_entry(name))
        asked = [(name, store_entry(name, number)) for number in range(1, 41) for name in names]
        answers = await asyncio.gather(*(store.append(name, entry) for name, entry in asked))
        for name in names:
            given = {seq: entry for (other, entry), seq in zip(asked, answers, strict=True) if other == name}
            assert sorted(given) == list(range(2, 42))
            assert dict(await store.read(name, after=1)) == given

    @pytest.mark.asyncio
    async def test_one_callers_order_is_kept(self, store: Store) -> None:
        """An append that is awaited is in front of the next one, whatever others do meanwhile."""
        await store.append("a", store_entry("a"))

        async def write(writer: int) -> list[int]:
            return [await store.append("a", store_entry("a", writer * 100 + each)) for each in range(1, 11)]

        for numbers in await asyncio.gather(*(write(writer) for writer in range(5))):
            assert numbers == sorted(numbers)

    @pytest.mark.asyncio
    async def test_cancelled_append_is_whole_or_absent(self, store: Store) -> None:
        """And the log goes on without a gap."""
        await store.append("a", store_entry("a"))
        tasks = [asyncio.ensure_future(store.append("a", store_entry("a", each))) for each in range(1, 21)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        last = await store.append("a", store_entry("a", 99))
        kept = await store.read("a")
        assert [seq for seq, _ in kept] == list(range(1, last + 1))
        asked = [store_entry("a", each) for each in range(1, 21)]
        assert all(entry in asked for _, entry in kept[1:-1])
        assert all(entry in [found for _, found in kept] for entry in asked[1::2])

    @pytest.mark.asyncio
    async def test_large_entries_are_returned_as_they_were(self, store: Store) -> None:
        """Some megabytes: a long context's ids."""
        await store.append("a", store_entry("a"))
        large = store_entry("a", 1, size=5_000_000)
        assert await store.append("a", large) == 2
        assert list(await store.read("a", after=1)) == [(2, large)]

    @pytest.mark.asyncio
    async def test_long_log_is_read_whole(self, store: Store) -> None:
        """Hundreds of entries, in order."""
        await store.append("a", store_entry("a"))
        await asyncio.gather(*(store.append("a", store_entry("a", each)) for each in range(1, 600)))
        assert [seq for seq, _ in await store.read("a", after=7)] == list(range(8, 601))

    @pytest.mark.asyncio
    async def test_key_is_claimed_by_one_until_its_time_is_over(self, store: Store) -> None:
        """However many ask at once."""
        answers = await asyncio.gather(*(store.claim("k", 0.3) for _ in range(10)))
        assert sorted(answers) == [False] * 9 + [True]
        assert await store.claim("other", 60)
        await asyncio.sleep(0.4)
        assert await store.claim("k", 60)
        assert not await store.claim("k", 60)

    @pytest.mark.asyncio
    @pytest.mark.parametrize("seed", range(10))
    async def test_any_order_of_steps_has_the_answers_it_must_have(self, store: Store, seed: int) -> None:
        """Creating, appending, reading, listing and deleting, mixed."""
        random = Random(seed)  # noqa: S311 - no secret
        whats: Sequence[Literal["create", "append", "read", "list", "delete"]]
        whats = ("create", "append", "append", "append", "read", "list", "delete")
        await play_store(store, [(random.choice(whats), random.choice("abc")) for _ in range(60)])


class DurableStoreConformance:
    """What a store with `durable = True` promises besides: what was answered for is there after a restart."""

    @pytest.mark.asyncio
    async def test_entries_and_order_outlive_the_store(self, make_store: MakeStore) -> None:
        """Also the numbers: they go on."""
        async with _opened(make_store) as store:
            for name in ("b", "a", "c"):
                await store.append(name, store_entry(name))
            await store.append("a", store_entry("a", 1))
            await store.delete("c")
            last = (await store.sessions())[-1][0]
        async with _opened(make_store) as store:
            assert await _listed(store) == ["b", "a"]
            assert list(await store.read("a")) == [(1, store_entry("a")), (2, store_entry("a", 1))]
            assert await store.append("a", store_entry("a", 2)) == 3
            with pytest.raises(LookupError):
                await store.append("c", store_entry("c", 1))
            await store.append("d", store_entry("d"))
            assert [name for _, name in await store.sessions(after=last)] == ["d"]

    @pytest.mark.asyncio
    async def test_closing_waits_for_what_was_asked(self, make_store: MakeStore) -> None:
        """An append that is under way when the store closes is kept or fails; one that is answered for is kept."""
        async with _opened(make_store) as store:
            await store.append("a", store_entry("a"))
            tasks = [
                asyncio.ensure_future(store.append("a", store_entry("a", each))) for each in range(1, 30)
            ]
            await asyncio.sleep(0)
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        async with _opened(make_store) as store:
            kept = {seq for seq, _ in await store.read("a")}
        assert {answer for answer in answers if isinstance(answer, int)} <= kept

    @pytest.mark.asyncio
    async def test_same_store_can_be_opened_again(self, make_store: MakeStore) -> None:
        """`start` after `close`."""
        store = make_store()
        for number in range(3):
            await store.start()
            assert await store.append("a", store_entry("a", number)) == number + 1
            await store.close()


class SharedStoreConformance:
    """What a store with `shared = True` promises besides: several over the same data are one."""

    @pytest.mark.asyncio
    async def test_what_one_keeps_the_other_reads(self, make_store: MakeStore) -> None:
        """At once, and deletions too."""
        async with _opened(make_store) as one, _opened(make_store) as other:
            await one.append("a", store_entry("a"))
            assert await other.append("a", store_entry("a", 1)) == 2
            assert list(await one.read("a", after=1)) == [(2, store_entry("a", 1))]
            await other.append("b", store_entry("b"))
            assert await _listed(one) == ["a", "b"]
            await other.delete("a")
            assert await _listed(one) == ["b"]
            with pytest.raises(LookupError):
                await one.append("a", store_entry("a", 2))

    @pytest.mark.asyncio
    async def test_writers_leave_no_gap(self, make_store: MakeStore) -> None:
        """Each append through one or the other has a number of its own."""
        async with _opened(make_store) as one, _opened(make_store) as other:
            await one.append("a", store_entry("a"))
            answers = await asyncio.gather(
                *((one, other)[each % 2].append("a", store_entry("a", each)) for each in range(1, 101))
            )
            assert sorted(answers) == list(range(2, 102))
            kept = dict(await one.read("a"))
            assert all(kept[seq] == store_entry("a", each) for each, seq in enumerate(answers, 1))
            assert await other.read("a") == await one.read("a")

    @pytest.mark.asyncio
    async def test_key_is_claimed_by_one_of_all(self, make_store: MakeStore) -> None:
        """A claim of one is a claim against all."""
        async with _opened(make_store) as one, _opened(make_store) as other:
            answers = await asyncio.gather(*((one, other)[each % 2].claim("k", 60) for each in range(10)))
            assert sorted(answers) == [False] * 9 + [True]


@asynccontextmanager
async def _opened(make_store: MakeStore) -> AsyncIterator[Store]:
    store = make_store()
    await store.start()
    try:
        yield store
    finally:
        await store.close()


async def _listed(store: Store, limit: int = 1000) -> list[str]:
    """All pages together."""
    names: list[str] = []
    after = 0
    while page := await store.sessions(after=after, limit=limit):
        assert len(page) <= limit
        assert [number for number, _ in page] == sorted({number for number, _ in page})
        after = page[-1][0]
        names += [name for _, name in page]
    return names
