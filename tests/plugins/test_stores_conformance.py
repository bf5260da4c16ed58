"""What every store promises, with each of them, and with the one that the hook's page shows."""

import asyncio
import re
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rolltap
from redis_servers import RedisServers
from rolltap import hookspecs
from rolltap.testing import (
    DurableStoreConformance,
    SharedStoreConformance,
    StoreConformance,
    play_store,
)
from rolltap_plugins.stores import memory, redis, sqlite

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "append", "append", "read", "list", "delete"]), st.sampled_from("abc")
    ),
    max_size=40,
)
_prefixes = count()


@pytest.fixture(scope="module")
def one_redis(tmp_path_factory):
    with RedisServers(tmp_path_factory.mktemp("redis")) as servers:
        yield servers


@pytest.fixture(scope="module")
def redis_cluster(tmp_path_factory):
    with RedisServers(tmp_path_factory.mktemp("cluster"), cluster=True) as servers:
        yield servers


class Interleavings:
    """Orders that hypothesis finds."""

    def test_hypothesis_finds_no_order_with_a_wrong_answer(self, make_store):
        async def play_all(steps):
            store = make_store()
            await store.start()
            try:
                await play_store(store, steps)
            finally:
                await store.close()

        @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
        @given(STEPS)
        def play(steps):
            asyncio.run(play_all(steps))

        play()


class TestMemory(Interleavings, StoreConformance):
    @pytest.fixture
    def make_store(self):
        return lambda: memory.create_store("memory", {})


class TestSqlite(Interleavings, DurableStoreConformance, StoreConformance):
    @pytest.fixture(params=["process", "power"])
    def make_store(self, tmp_path, request):
        options = {"path": str(tmp_path / "rolltap.db"), "durability": request.param}
        return lambda: sqlite.create_store("sqlite", options)


class OnRedis(Interleavings, SharedStoreConformance, DurableStoreConformance, StoreConformance):
    @pytest.fixture
    def make_store(self, servers):
        options = {"url": servers.url, "cluster": servers.cluster, "prefix": f"test{next(_prefixes)}"}
        return lambda: redis.create_store("redis", options)


class TestRedis(OnRedis):
    @pytest.fixture
    def servers(self, one_redis):
        return one_redis


class TestRedisCluster(OnRedis):
    @pytest.fixture
    def servers(self, redis_cluster):
        return redis_cluster


class TestTheHooksExample(StoreConformance):
    """The store that is shown to plugin authors keeps the promises too."""

    @pytest.fixture
    def make_store(self):
        page = Path(hookspecs.__file__).read_text(encoding="utf-8")
        shown = re.search(r'Example: `\[store\] kind = "lists"`.*?::\n\n(.*?)    """', page, re.DOTALL)
        names = {}
        exec(re.sub(r"^        ", "", shown[1], flags=re.MULTILINE), names)
        assert issubclass(names["Lists"], rolltap.Store)
        return names["create_store"]["lists"]
