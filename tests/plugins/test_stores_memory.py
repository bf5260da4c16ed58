"""The store "memory"."""

import pytest

from rolltap import ConfigError
from rolltap.testing import store_entry
from rolltap_plugins.stores import memory


def test_other_kinds_are_not_its_own():
    assert memory.create_store("sqlite", {"path": "x"}) is None


def test_option_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"path = 'x\.db'.*no options"):
        memory.create_store("memory", {"path": "x.db"})


async def test_entries_are_kept_as_they_are_and_gone_with_the_store():
    store, entry = memory.create_store("memory", {}), store_entry("a")
    await store.append("a", entry)
    assert (await store.read("a"))[0][1] is entry
    assert await memory.create_store("memory", {}).read("a") == []


async def test_taken_claims_do_not_pile_up():
    store = memory.create_store("memory", {})
    for number in range(5000):
        assert await store.claim(f"short{number}", 0)
    assert len(store._taken._until) <= 1024
