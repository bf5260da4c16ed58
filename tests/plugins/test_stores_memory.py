"""The store "memory"."""

import pytest

from rolltap import ConfigError, SessionInfo
from rolltap.record import SessionCreated, SessionDeleted
from rolltap_plugins.stores import memory

CREATED = SessionCreated(SessionInfo(uuid="a", model_name="tiny", tool_parser="hermes"))


@pytest.fixture
def store():
    return memory.create_store("memory", {})


def test_other_kinds_are_not_its_own():
    assert memory.create_store("sqlite", {"path": "x"}) is None


def test_option_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"path = 'x\.db'.*no options"):
        memory.create_store("memory", {"path": "x.db"})


async def test_entries_are_numbered_and_read_in_order(store):
    assert await store.append("a", CREATED) == 1
    assert await store.append("a", SessionDeleted()) == 2
    assert await store.append("b", CREATED) == 1
    assert await store.read("a") == [(1, CREATED), (2, SessionDeleted())]
    assert await store.read("a", after=1) == [(2, SessionDeleted())]
    assert await store.read("a", after=2) == []
    assert sorted(await store.sessions()) == ["a", "b"]


async def test_unknown_session_is_empty_and_leaves_no_trace(store):
    assert await store.read("nobody") == []
    await store.delete("nobody")
    assert await store.sessions() == []


async def test_deleted_session_is_gone(store):
    await store.append("a", CREATED)
    await store.delete("a")
    assert await store.read("a") == []
    assert await store.sessions() == []
    assert await store.append("a", CREATED) == 1


async def test_start_and_close_do_nothing_wrong(store):
    await store.start()
    await store.append("a", CREATED)
    await store.close()
    assert await store.read("a") == [(1, CREATED)]
