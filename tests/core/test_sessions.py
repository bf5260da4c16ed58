"""Sessions are views of their logs: read when they are asked for, right also where several servers share a store."""

import asyncio
import time

import pytest

import rolltap
from redis_servers import RedisServer
from rolltap import BadRequest, NotFound, RequestError, Store, StoreError
from rolltap.record import (
    CallBegun,
    CallRecorded,
    Context,
    Output,
    Prompt,
    SessionCreated,
    SessionInfo,
    Times,
    pack_ids,
    pack_logprobs,
)
from rolltap.server.state import SESSIONS
from rolltap.sessions import Sessions
from rolltap.testing import Reply, ScriptedTokenBackend, assert_exact, serve

TTL_S = 1000.0


class Logs(Store):
    """A store in memory that outlives those who use it, and gives way to others before it answers."""

    durable = shared = True

    def __init__(self):
        self.logs = {}
        self.reads = 0
        self.broken = None

    async def _asked(self):
        await asyncio.sleep(0)
        if self.broken is not None:
            raise self.broken

    async def append(self, session, entry):
        await self._asked()
        if session not in self.logs and not isinstance(entry, SessionCreated):
            raise LookupError(session)
        log = self.logs.setdefault(session, [])
        log.append(entry)
        return len(log)

    async def read(self, session, after=0):
        await self._asked()
        self.reads += 1
        return [*enumerate(self.logs.get(session, ()), 1)][max(0, after) :]

    async def sessions(self, *, after=0, limit=1000):
        await self._asked()
        return [*enumerate(self.logs, 1)][after : after + limit]

    async def delete(self, session):
        await self._asked()
        self.logs.pop(session, None)


class Alone(Logs):
    """The same for one server."""

    shared = False


def opened(store, **options):
    return Sessions(store, max_sessions=10, ttl_s=TTL_S, **options)


def info(uuid="s"):
    return SessionInfo(uuid=uuid, model_name="m", created_at=time.time())


def call(number, ended=0.0):
    output = Output(node_id=f"n{number}", ids=pack_ids([number]), logprobs=pack_logprobs([-1.0]))
    return CallRecorded(
        call_id=f"c{number}",
        backend="b",
        context=Context(model="m"),
        prompt=Prompt(ids=pack_ids([0])),
        outputs=(output,),
        times=Times(ended=ended),
    )


def make_old(sessions, uuid, by=TTL_S + 1):
    """As if it had been used last so many seconds ago."""
    sessions._known[uuid] -= by
    if uuid in sessions._loaded:
        sessions._loaded[uuid].last_accessed -= by


async def test_logs_are_read_when_they_are_asked_for():
    store = Alone()
    before = opened(store)
    for uuid in ("a", "b"):
        await (await before.create(info(uuid))).append(call(1))
    after = opened(store)
    await after.restore()
    assert (store.reads, "a" in after, len(after)) == (0, True, 2)
    session = await after.get("a")
    assert [node.id for node in session.record.forest] == ["n1"]
    assert store.reads == 1


async def test_an_idle_one_leaves_memory_and_comes_back_as_it_was():
    sessions = opened(Alone())
    session = await sessions.create(info())
    await session.append(call(1))
    make_old(sessions, "s", 100)
    await sessions.expire()
    assert not sessions._loaded
    summary = await sessions.summary("s")
    assert summary.num_calls == 1
    back = await sessions.get("s")
    assert back is not session
    assert [node.id for node in back.record.forest] == ["n1"]


async def test_looking_at_a_session_is_no_use_of_it():
    store = Alone()
    await opened(store).create(info())
    sessions = opened(store)
    await sessions.restore()
    make_old(sessions, "s", 500)
    summary = await sessions.summary("s")
    assert summary.last_accessed < time.time() - 400
    assert not sessions._loaded


async def test_a_listing_takes_no_session_out_of_memory_that_a_request_has_got():
    store = Alone()
    await opened(store).create(info())
    sessions = opened(store)
    await sessions.restore()
    session, _ = await asyncio.gather(sessions.get("s"), sessions.summary("s"))
    assert await sessions.get("s") is session


async def test_it_does_not_expire_while_a_call_runs():
    sessions = opened(Alone())
    session = await sessions.create(info())
    running = object()
    session.calls.add(running)
    make_old(sessions, "s")
    await sessions.expire()
    assert "s" in sessions
    session.calls.discard(running)
    await sessions.expire()
    assert ("s" in sessions, sessions.store.logs) == (False, {})


async def test_expiring_and_deleting_at_once_end_in_one_deleted_session():
    sessions = opened(Alone())
    await sessions.create(info())
    make_old(sessions, "s")
    await asyncio.gather(sessions.expire(), sessions.delete("s"))
    assert (len(sessions), sessions.store.logs) == (0, {})
    with pytest.raises(NotFound):
        await sessions.delete("s")


async def test_one_that_is_deleted_while_it_is_read_is_not_known_afterwards():
    store = Alone()
    await opened(store).create(info())
    sessions = opened(store)
    await sessions.restore()
    await asyncio.gather(sessions.delete("s"), sessions.get("s"), return_exceptions=True)
    assert len(sessions) == 0
    assert await sessions.summary("s") is None


async def test_nothing_is_recorded_behind_a_seal():
    sessions = opened(Alone())
    session = await sessions.create(info())
    sealing = asyncio.ensure_future(session.seal())
    await asyncio.sleep(0)
    with pytest.raises(RequestError, match="is sealed"):
        session.check_open()
    sealed = await sealing
    assert await session.seal() == sealed
    assert sealed.snapshot == session.record.digest()


async def test_a_seal_that_could_not_be_kept_leaves_the_session_open():
    sessions = opened(Alone())
    session = await sessions.create(info())
    sessions.store.broken = OSError("disk full")
    with pytest.raises(StoreError, match="disk full"):
        await session.seal()
    session.check_open()
    assert sessions.counts["store_failures"] == 1


@pytest.mark.parametrize("after", ["x", "-1", "1.5"])
async def test_a_cursor_that_no_listing_gave_is_refused(after):
    with pytest.raises(BadRequest, match="after="):
        _ = [each async for each in opened(Alone()).page(after=after)]


class TestTwoServers:
    """Two servers over one store."""

    @pytest.fixture
    def pair(self):
        store = Logs()
        return opened(store), opened(store)

    async def test_each_sees_what_the_other_records(self, pair):
        one, two = pair
        here = await one.create(info())
        for number in range(1, 5):
            there = await pair[number % 2].get("s")
            await there.append(call(number))
        assert (await one.summary("s")).num_calls == 4
        await here.catch_up()
        there = await two.get("s")
        assert here.record.digest() == there.record.digest()
        assert here.record.seq == there.record.seq == 5

    async def test_appending_at_once_leaves_both_with_the_same(self, pair):
        one, two = pair
        here, there = await one.create(info()), await two.get("s")
        nodes = await asyncio.gather(*(at.append(call(n)) for n, at in enumerate([here, there] * 5)))
        assert [node.id for (node,) in nodes] == [f"n{number}" for number in range(10)]
        await asyncio.gather(here.catch_up(), there.catch_up())
        assert here.record.digest() == there.record.digest()

    async def test_one_that_the_other_has_deleted_is_gone_at_once(self, pair):
        one, two = pair
        await one.create(info())
        await two.get("s")
        await one.delete("s")
        for _ in range(2):
            with pytest.raises(NotFound):
                await two.get("s")
        assert (len(two), await two.summary("s")) == (0, None)

    async def test_a_call_that_ends_after_the_other_has_deleted_its_session_is_dropped(self, pair):
        one, two = pair
        here = await one.create(info())
        await (await two.get("s")).append(call(1))
        await two.delete("s")
        assert await here.append(call(2)) == []
        assert here.record.deleted

    async def test_one_that_the_other_uses_does_not_expire(self, pair):
        one, two = pair
        await one.create(info())
        await (await two.get("s")).append(call(1, ended=time.time()))
        make_old(one, "s")
        await one.expire()
        assert (await two.get("s")).record.num_calls == 1

    async def test_one_that_nobody_uses_expires(self, pair):
        one, _ = pair
        old = SessionInfo(uuid="s", model_name="m", created_at=time.time() - 2 * TTL_S)
        await (await one.create(old)).append(CallBegun(call_id="lost", begun_at=old.created_at))
        make_old(one, "s")
        await one.expire()
        assert (len(one), one.store.logs) == (0, {})


@pytest.fixture
def redis_store(tmp_path):
    server = RedisServer(tmp_path)
    yield {"kind": "redis", "url": server.url}
    server.kill()


def chat(*texts):
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]}


async def test_turns_by_turns_on_two_servers_are_one_exact_node(rolltap_tokenizer, redis_store):
    backends = [ScriptedTokenBackend(rolltap_tokenizer, lambda *_: "Fine.") for _ in range(2)]
    async with (
        serve(backends[0], config={"store": redis_store}) as one,
        serve(backends[1], config={"store": redis_store}) as two,
    ):
        session, said = await one.session(), []
        for number in range(4):
            said.append(f"Question {number}?")
            server = (one, two)[number % 2]
            status, answer = await server.post(f"/{session}/v1/chat/completions", chat(*said))
            assert status == 200, answer
            said.append("Fine.")
        calls = [backends[number % 2].calls[number // 2] for number in range(4)]
        for server in (one, two):
            (node,) = await server.nodes(session)
            assert_exact(node, calls[3], *calls[:3])


async def test_calls_that_a_killed_server_has_lost_are_told(rolltap_tokenizer, rolltap_serve, tmp_path):
    store = {"kind": "sqlite", "path": str(tmp_path / "log.db")}
    backend = ScriptedTokenBackend(rolltap_tokenizer, ["Fine."])
    async with serve(backend, config={"store": store}) as server:
        session = await server.session()
        await server.post(f"/{session}/v1/chat/completions", chat("How are you?"))
        at_work = await server.app[SESSIONS].get(session)
        await at_work.append(CallBegun(call_id="lost"))
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer), config={"store": store})
    (node,) = await server.nodes(session)
    assert node["metadata"]["incomplete"] == 1
    async with server.http.get("/sessions") as got:
        (listed,) = (await got.json())["sessions"]
    assert listed["incomplete"] == 1
    _, sealed = await server.post(f"/{session}/seal", {})
    assert sealed["complete"] is False


async def test_a_store_that_fails_is_told_and_counted(rolltap_tokenizer, rolltap_serve):
    store = Alone()

    class Plugin:
        @rolltap.hookimpl
        def create_store(self, kind):
            return store if kind == "mine" else None

    server = await rolltap_serve(
        ScriptedTokenBackend(rolltap_tokenizer, [Reply(text="Fine.")]),
        plugins=[Plugin()],
        config={"store": {"kind": "mine"}},
    )
    session = await server.session()
    store.broken = OSError("disk full")
    status, answer = await server.post(f"/{session}/v1/chat/completions", chat("a"))
    assert (status, answer["error"]["code"]) == (503, "store_unavailable")
    async with server.http.get("/health") as got:
        health = await got.json()
    assert health["store"]["failures"] >= 1, health
    store.broken = None
    assert (await server.post(f"/{session}/v1/chat/completions", chat("b")))[0] == 200
