"""The store "redis": its options, what breaks, and what is left of it."""

import asyncio
import subprocess
from contextlib import asynccontextmanager
from itertools import count
from urllib.parse import urlsplit

import pytest

from redis_servers import RedisServer, RedisServers, free_port
from rolltap import ConfigError, StoreError
from rolltap.testing import store_entry
from rolltap_plugins.stores import redis

_prefixes = count()

ALWAYS = ("--appendfsync", "always")
"""With "everysec", a killed Redis may lose what it answered within the last two seconds."""


def make_store(url, **options):
    return redis.create_store("redis", {"url": url, "prefix": f"t{next(_prefixes)}", **options})


@asynccontextmanager
async def opened(url, **options):
    store = make_store(url, **options)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with RedisServers(tmp_path_factory.mktemp("redis")) as servers:
        yield servers.nodes[0]


@pytest.fixture
def own_server(tmp_path):
    """A server that the test may kill or fill."""
    server = RedisServer(tmp_path, options=ALWAYS)
    yield server
    server.kill()


@pytest.fixture
async def proxy(server):
    """Between a store and Redis; `cut` appends to be kept and not answered for."""
    proxy = Proxy(server.port)
    proxy.listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    yield proxy
    proxy.listening.close()
    await asyncio.gather(*proxy.running, return_exceptions=True)


class Proxy:
    def __init__(self, port):
        self.port, self.cut, self.cuts, self.running = port, None, 0, set()

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.listening.sockets[0].getsockname()[1]}/0"

    async def serve(self, reader, writer):
        self.running.add(asyncio.current_task())
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            while asked := await reader.read(1 << 20):
                to_writer.write(asked)
                answer = await to_reader.read(1 << 20)
                if self.cut is not None and self.cut in asked and self.cuts == 0:
                    self.cuts += 1
                    return
                writer.write(answer)
        finally:
            for each in (writer, to_writer):
                each.close()


class TestOptions:
    def test_other_kinds_are_not_its_own(self):
        assert redis.create_store("memory", {}) is None

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"uri": "x"}, r"unknown option 'uri'; did you mean .url"),
            ({"url": "http://x"}, r"url = 'http://x' is no address of a Redis.*redis://127"),
            ({"prefix": "a{b}"}, r"option 'prefix' is 'a\{b\}'"),
            ({"ttl_s": -1}, r"option 'ttl_s' is -1"),
        ],
    )
    def test_wrong_option_is_refused_by_name(self, options, message):
        with pytest.raises(ConfigError, match=message):
            redis.create_store("redis", options)

    async def test_password_is_never_shown(self):
        port = free_port()
        with pytest.raises(ConfigError) as caught:
            async with opened(f"redis://user:hidden@127.0.0.1:{port}/0"):
                pass
        assert f"redis://127.0.0.1:{port}/0" in str(caught.value)
        assert "hidden" not in str(caught.value)


class TestStart:
    async def test_nobody_there_is_said(self):
        port = free_port()
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}/0'.*does not answer.*Start it"):
            async with opened(f"redis://127.0.0.1:{port}/0"):
                pass

    async def test_no_cluster_where_one_was_named_is_said(self, server):
        with pytest.raises(ConfigError, match=r"`cluster`, which must be true for a Redis Cluster alone"):
            async with opened(server.url, cluster=True):
                pass

    async def test_password_that_is_missing_is_said(self, tmp_path):
        server = RedisServer(tmp_path)
        try:
            with server.client() as client:
                client.config_set("requirepass", "secret")
            with pytest.raises(ConfigError, match=r"Authentication required"):
                async with opened(server.url):
                    pass
            async with opened(f"redis://:secret@127.0.0.1:{server.port}/0") as store:
                assert await store.append("a", store_entry("a")) == 1
        finally:
            server.kill()

    async def test_what_redis_would_lose_is_said(self, tmp_path, caplog):
        options = ("--appendonly", "no", "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")
        with RedisServers(tmp_path, options=options) as servers:
            async with opened(servers.url):
                pass
        said = "\n".join(caplog.messages)
        assert "keeps no append-only file" in said
        assert "maxmemory-policy allkeys-lru" in said

    async def test_nothing_is_said_where_all_is_well(self, server, caplog):
        async with opened(server.url):
            pass
        assert caplog.messages == []

    async def test_old_redis_is_refused_by_version(self, server, monkeypatch):
        monkeypatch.setattr(redis, "_OLDEST", 99)
        with pytest.raises(ConfigError, match=r"this is Redis 7\.\d+\.\d+; the store needs 99\.0 or newer"):
            async with opened(server.url):
                pass


class TestKeys:
    async def test_are_as_the_module_says(self, server):
        async with opened(server.url, prefix="named") as store:
            await store.append("a", store_entry("a"))
            await store.append("a", store_entry("a", 1))
            await store.claim("k", 60)
        with server.client() as client:
            keys = {b"named:{a}:log", b"named:{sessions}:order", b"named:{sessions}:count", b"named:claim:k"}
            assert set(client.keys("named*")) == keys
            assert [number for number, _ in client.xrange("named:{a}:log")] == [b"0-1", b"0-2"]
            assert client.ttl("named:{a}:log") == -1
            assert 0 < client.ttl("named:claim:k") <= 60

    async def test_log_expires_after_its_last_entry(self, server):
        async with opened(server.url, ttl_s=0.6) as store:
            await store.append("a", store_entry("a"))
            await store.append("b", store_entry("b"))
            for number in range(1, 5):
                await asyncio.sleep(0.25)
                await store.append("b", store_entry("b", number))
            assert [name for _, name in await store.sessions()] == ["b"]
            assert list(await store.read("a")) == []
            with pytest.raises(LookupError):
                await store.append("a", store_entry("a", 1))
            with server.client() as client:
                assert client.zcard(store._order) == 1

    async def test_log_that_was_never_listed_does_not_stay(self, server, monkeypatch):
        async with opened(server.url) as store:
            with monkeypatch.context() as dying:
                dying.setattr(redis, "_LIST", "return redis.error_reply('the server died here')")
                with pytest.raises(StoreError):
                    await store.append("a", store_entry("a"))
            with server.client() as client:
                assert 0 < client.pttl(store._log("a")) <= 60_000
            assert await store.sessions() == []

    async def test_page_is_full_where_some_logs_are_gone(self, server):
        async with opened(server.url) as store:
            for number in range(6):
                await store.append(f"s{number}", store_entry(f"s{number}"))
            with server.client() as client:
                client.delete(store._log("s0"), store._log("s2"))
            assert [name for _, name in await store.sessions(limit=3)] == ["s1", "s3", "s4"]


class TestBreaking:
    async def test_append_whose_answer_was_lost_is_kept_once(self, proxy):
        async with opened(proxy.url) as store:
            await store.append("a", store_entry("a"))
            proxy.cut = b"XADD"
            assert await store.append("a", store_entry("a", 1)) == 2
            assert proxy.cuts == 1
            assert await store.append("a", store_entry("a", 2)) == 3
            assert list(await store.read("a")) == [(seq, store_entry("a", seq - 1)) for seq in (1, 2, 3)]

    async def test_claim_whose_answer_was_lost_is_ones_own(self, proxy):
        async with opened(proxy.url) as store:
            proxy.cut = b"SET"
            assert await store.claim("k", 60)
            assert proxy.cuts == 1
            assert not await store.claim("k", 60)

    async def test_killed_redis_loses_nothing_that_was_answered_for(self, own_server):
        kept, answers = {}, asyncio.Semaphore(0)

        async with opened(own_server.url) as store:
            for name in "abcd":
                kept[name, await store.append(name, store_entry(name))] = 0

            async def fill(name, writer, stop):
                for number in range(writer, 1_000_000, 4):
                    if stop.is_set():
                        return
                    kept[name, await store.append(name, store_entry(name, number))] = number
                    answers.release()

            for each in range(5):
                stop = asyncio.Event()
                first = 1 + 10_000_000 * each
                fills = [
                    asyncio.ensure_future(fill(name, first + writer, stop))
                    for name in "abcd"
                    for writer in range(4)
                ]
                for _ in range(20):
                    await answers.acquire()
                await asyncio.to_thread(own_server.kill)
                await asyncio.sleep(0.1)
                await asyncio.to_thread(own_server.start)
                await asyncio.sleep(0.1)
                stop.set()
                await asyncio.gather(*fills)
            for name in "abcd":
                log = dict(await store.read(name))
                assert list(log) == list(range(1, len(log) + 1))
                given = {seq: number for (other, seq), number in kept.items() if other == name}
                assert {seq: log.get(seq) for seq in given} == {
                    seq: store_entry(name, number) for seq, number in given.items()
                }
                assert len({str(entry) for entry in log.values()}) == len(log), "an entry was kept twice"

    async def test_redis_that_stays_away_is_said_and_welcomed_back(self, own_server, caplog):
        async with opened(own_server.url, retry_s=0.3) as store:
            await store.append("a", store_entry("a"))
            await asyncio.to_thread(own_server.kill)
            for ask in (store.append("a", store_entry("a", 1)), store.read("a"), store.claim("k", 1)):
                with pytest.raises(StoreError, match="Redis does not answer") as caught:
                    await ask
                assert str(own_server.port) not in str(caught.value)
            await asyncio.to_thread(own_server.start)
            assert await store.append("a", store_entry("a", 1)) == 2
        levels = [record.levelname for record in caplog.records if record.name == redis.__name__]
        assert levels == ["ERROR", "WARNING"]

    async def test_hanging_redis_is_not_waited_for_without_end(self, own_server):
        async with opened(own_server.url, retry_s=0, timeout_s=0.3) as store:
            await store.append("a", store_entry("a"))
            await asyncio.to_thread(
                subprocess.run, ["kill", "-STOP", str(own_server.process.pid)], check=True
            )
            try:
                with pytest.raises(StoreError, match="Redis does not answer"):
                    await asyncio.wait_for(store.read("a"), 5)
            finally:
                await asyncio.to_thread(
                    subprocess.run, ["kill", "-CONT", str(own_server.process.pid)], check=True
                )
            assert len(await store.read("a")) == 1

    async def test_full_memory_is_said_and_room_is_used(self, own_server):
        with own_server.client() as client:
            client.config_set("maxmemory", "8mb")
        async with opened(own_server.url) as store:
            for name in "ab":
                await store.append(name, store_entry(name))
            appends = [store.append("a", store_entry("a", number, size=50_000)) for number in range(1, 500)]
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
            refused = [outcome for outcome in outcomes if not isinstance(outcome, int)]
            assert {str(outcome) for outcome in refused} == {
                'the store "redis" failed: Redis refused the command (OutOfMemoryError)'
            }
            assert len(await store.read("a")) == 1 + len(outcomes) - len(refused) > 10
            await store.delete("a")
            assert await store.append("b", store_entry("b", 1)) == 2

    async def test_more_at_once_than_it_has_connections(self, server):
        async with opened(server.url) as store:
            await store.append("a", store_entry("a"))
            answers = await asyncio.gather(
                *(store.append("a", store_entry("a", each)) for each in range(1, 500))
            )
            assert sorted(answers) == list(range(2, 501))


class TestCluster:
    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls, tmp_path_factory):
        with RedisServers(tmp_path_factory.mktemp("cluster"), cluster=True, options=ALWAYS) as servers:
            yield servers

    async def test_sessions_are_spread_over_the_nodes(self, cluster):
        async with opened(cluster.url, cluster=True, prefix="spread") as store:
            for number in range(60):
                await store.append(f"s{number}", store_entry(f"s{number}"))
            assert len(await store.sessions()) == 60
        for node in cluster.nodes:
            with node.client() as client:
                assert len(client.keys("spread:*:log")) > 5

    async def test_killed_node_comes_back_with_its_sessions(self, cluster):
        async with opened(cluster.url, cluster=True, retry_s=30) as store:
            names = [f"s{number}" for number in range(30)]
            for name in names:
                await store.append(name, store_entry(name))
            for node in cluster.nodes:
                await asyncio.to_thread(node.kill)
                appends = [
                    asyncio.ensure_future(store.append(name, store_entry(name, node.port))) for name in names
                ]
                await asyncio.sleep(0.2)
                await asyncio.to_thread(node.start)
                await asyncio.gather(*appends)
            for name in names:
                expected = [store_entry(name), *(store_entry(name, node.port) for node in cluster.nodes)]
                assert list(await store.read(name)) == list(enumerate(expected, 1))


def test_shown_address_has_no_secret():
    shown = redis._shown("rediss://user:hidden@host:6380/2?password=hidden")
    assert urlsplit(shown).hostname == "host"
    assert "hidden" not in shown
