"""A server with each store that keeps: what clients see after a restart, and while the store fails."""

import asyncio

import pytest

from redis_servers import RedisServer
from rolltap.testing import ScriptedTokenBackend, serve


@pytest.fixture
def start(rolltap_tokenizer):
    def start(store):
        return serve(ScriptedTokenBackend(rolltap_tokenizer, lambda *_: "Fine."), config={"store": store})

    return start


@pytest.fixture
def redis_server(tmp_path):
    server = RedisServer(tmp_path)
    yield server
    server.kill()


@pytest.fixture(params=["sqlite", "redis"])
def keeping_store(request, tmp_path):
    if request.param == "sqlite":
        return {"kind": "sqlite", "path": str(tmp_path / "rolltap.db")}
    return {"kind": "redis", "url": request.getfixturevalue("redis_server").url}


async def say(server, session, *texts):
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    return await server.post(f"/{session}/v1/chat/completions", {"messages": messages})


async def test_restart_goes_on_with_the_same_nodes(start, keeping_store):
    async with start(keeping_store) as server:
        session, deleted = await server.session(), await server.session()
        assert (await say(server, session, "How are you?"))[0] == 200
        before = await server.nodes(session)
        async with server.http.delete(f"/{deleted}") as response:
            assert response.status == 200
    async with start(keeping_store) as server:
        assert await server.nodes(session) == before
        assert (await say(server, session, "How are you?", "Fine.", "And now?"))[0] == 200
        (node,) = await server.nodes(session)
        assert node["tokens"][: len(before[0]["tokens"])] == before[0]["tokens"]
        assert (await say(server, deleted, "Still there?"))[0] == 404


async def test_store_that_fails_is_a_503_until_it_works_again(start, redis_server):
    store = {"kind": "redis", "url": redis_server.url, "retry_s": 0.2}
    async with start(store) as server:
        session = await server.session()
        await asyncio.to_thread(redis_server.kill)
        status, body = await say(server, session, "How are you?")
        assert (status, body["error"]["code"]) == (503, "store_unavailable")
        assert "Redis does not answer" in body["error"]["message"]
        assert str(redis_server.port) not in str(body)
        await asyncio.to_thread(redis_server.start)
        assert (await say(server, session, "How are you now?"))[0] == 200


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_listing_goes_on_behind_sessions_that_were_deleted(start, tmp_path, kind):
    store = {"kind": kind} if kind == "memory" else {"kind": kind, "path": str(tmp_path / "rolltap.db")}
    async with start(store) as server:
        created = [await server.session() for _ in range(5)]
        seen, after = [], ""
        while after is not None:
            async with server.http.get("/sessions", params={"limit": "2", "after": after}) as response:
                page = await response.json()
            for session in page["sessions"]:
                seen.append(session["uuid"])
                async with server.http.delete(f"/{session['uuid']}") as response:
                    assert response.status == 200
            after = page["next"]
        assert seen == created


async def test_cursor_that_no_listing_gave_is_refused(start):
    async with start({"kind": "memory"}) as server:
        for cursor in ("x", "-1", "9" * 30):
            async with server.http.get("/sessions", params={"after": cursor}) as response:
                body = await response.json()
            assert (response.status, body["error"]["param"]) == (400, "after"), cursor
