"""What ends a rollout: rewards, sealing, limits, groups; and the stream of what is recorded."""

import asyncio
import json

import pytest

from rolltap.testing import Reply, ScriptedTokenBackend

CHAT = {"messages": [{"role": "user", "content": "a"}]}
KEYS = {"server": {"api_keys": ["secret"]}}


@pytest.fixture
async def server(rolltap_serve, rolltap_tokenizer):
    return await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, lambda ids, sampling: "Hi."))


async def ask(server, session, **fields):
    return await server.post(f"/{session}/v1/chat/completions", CHAT | fields)


async def get(server, path, **query):
    async with server.http.get(path, params=query) as response:
        return response.status, await response.json()


async def delete(server, path, **query):
    async with server.http.delete(path, params=query) as response:
        return response.status, await response.json()


async def test_the_last_reward_of_a_name_wins_and_a_nodes_own_goes_first(server):
    session = await server.session()
    await ask(server, session, n=2)
    one, two = [node["metadata"]["node_id"] for node in await server.nodes(session)]
    for body in (
        {"value": 0.5},
        {"value": 1},
        {"value": -1, "node_id": one},
        {"value": 3, "name": "style", "node_id": two},
    ):
        status, answer = await server.post(f"/{session}/reward", body)
        assert status == 200, answer
    rewards = [node["metadata"]["rewards"] for node in await server.nodes(session)]
    assert rewards == [{"reward": -1.0}, {"reward": 1.0, "style": 3.0}]
    assert [node["metadata"]["reward"] for node in await server.nodes(session)] == [-1.0, 1.0]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "value"),
        ({"value": "much"}, 400, "value"),
        ({"value": 1, "nmae": "x"}, 400, None),
        ({"value": 1, "node_id": "nobody"}, 404, "node_id"),
    ],
)
async def test_a_wrong_reward_names_the_field(server, body, status, param):
    session = await server.session()
    got, answer = await server.post(f"/{session}/reward", body)
    assert got == status
    assert param is None or param in (answer["error"]["param"] or "") + answer["error"]["message"]


async def test_a_sealed_session_takes_no_calls_but_rewards(server):
    session = await server.session()
    await ask(server, session)
    status, sealed = await server.post(f"/{session}/seal", {})
    assert (status, sealed["state"], sealed["num_nodes"], sealed["complete"]) == (200, "sealed", 1, True)
    assert (await server.post(f"/{session}/seal", {}))[1] == sealed
    status, answer = await ask(server, session)
    assert (status, answer["error"]["code"]) == (409, "session_sealed")
    async with server.http.post(f"/{session}/v1/messages", json={**CHAT, "max_tokens": 9}) as response:
        assert (response.status, (await response.json())["error"]["type"]) == (409, "conflict_error")
    assert (await server.post(f"/{session}/reward", {"value": 1}))[0] == 200
    (node,) = await server.nodes(session)
    assert node["metadata"]["reward"] == 1.0
    _, listed = await get(server, "/sessions", state="sealed")
    assert [each["uuid"] for each in listed["sessions"]] == [session]


async def test_sealing_waits_for_the_calls_in_flight(rolltap_serve, rolltap_tokenizer):
    backend = ScriptedTokenBackend(rolltap_tokenizer, [Reply(text="slow answer", delay_s=0.05)])
    server = await rolltap_serve(backend)
    session = await server.session()
    call = asyncio.ensure_future(ask(server, session))
    await asyncio.sleep(0.1)
    _, sealed = await server.post(f"/{session}/seal", {})
    assert (await call)[0] == 200
    assert sealed["num_nodes"] == 1


@pytest.mark.parametrize(
    ("limits", "calls"),
    [({"turns": 2}, 2), ({"tokens": 3}, 1), ({"deadline_s": 0.000001}, 0)],
)
async def test_past_a_limit_a_call_is_refused_by_name(server, limits, calls):
    session = await server.session(limits=limits)
    for _ in range(calls):
        assert (await ask(server, session))[0] == 200
    status, answer = await ask(server, session)
    assert (status, answer["error"]["code"]) == (400, "session_limit")
    (name,) = limits
    assert f"limits.{name} = " in answer["error"]["message"]


async def test_groups_are_listed_paged_and_deleted(server):
    sessions = [await server.session(group=group, labels={"task": group}) for group in "abaa"]
    _, first = await get(server, "/sessions", group="a", limit="2")
    assert [each["uuid"] for each in first["sessions"]] == [sessions[0], sessions[2]]
    assert first["sessions"][0]["labels"] == {"task": "a"}
    _, rest = await get(server, "/sessions", group="a", limit="2", after=first["next"])
    assert ([each["uuid"] for each in rest["sessions"]], rest["next"]) == ([sessions[3]], None)
    assert (await delete(server, "/sessions"))[0] == 400
    assert await delete(server, "/sessions", group="a") == (
        200,
        {"status": "deleted", "group": "a", "deleted": 3},
    )
    _, left = await get(server, "/sessions")
    assert [each["uuid"] for each in left["sessions"]] == [sessions[1]]


async def test_entries_are_told_as_they_are_recorded(server):
    session, other = await server.session(), await server.session()
    async with server.http.get("/events", params={"session": session}) as response:
        await response.content.readuntil(b"\n\n")
        await ask(server, other)
        await ask(server, session)
        await server.post(f"/{session}/reward", {"value": 1})
        frames = [(await response.content.readuntil(b"\n\n")).decode() for _ in range(2)]
    events = [json.loads(frame.partition("data: ")[2]) for frame in frames]
    assert [event["type"] for event in events] == ["call", "reward"]
    assert {event["session"] for event in events} == {session}
    (node,) = events[0]["nodes"]
    assert (node["trainable"], node["message"]["content"]) == (True, "Hi.")
    assert events[0]["messages"] == [{"role": "user", "content": "a"}]


async def test_the_conversation_and_its_tools_come_with_the_nodes(server):
    session = await server.session()
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    await ask(server, session, tools=tools)
    (node,) = await server.nodes(session, messages="true")
    assert node["messages"] == [*CHAT["messages"], {"role": "assistant", "content": "Hi."}]
    assert node["tools"] == tools


class TestAdmin:
    async def test_a_pause_holds_new_calls_until_the_resume(self, server):
        session = await server.session()
        status, state = await server.post("/admin/pause", {"mode": "keep"})
        assert (status, state["paused"]) == (200, True)
        assert [each["supported"] for each in state["engines"]] == [False]
        call = asyncio.ensure_future(ask(server, session))
        await asyncio.sleep(0.2)
        assert not call.done()
        status, state = await server.post("/admin/resume", {"version": 7})
        assert (status, state["paused"], state["versions"]) == (200, False, {"test-model": 7})
        assert (await call)[0] == 200
        (node,) = await server.nodes(session)
        assert node["metadata"]["weight_versions"] == [[0, node["metadata"]["num_generated"], 7]]

    async def test_a_version_that_changes_in_the_middle_is_told_as_such(
        self, rolltap_serve, rolltap_tokenizer
    ):
        backend = ScriptedTokenBackend(rolltap_tokenizer, [Reply(text="slow answer", delay_s=0.05)])
        server = await rolltap_serve(backend)
        session = await server.session()
        await server.post("/admin/weights", {"version": 1})
        call = asyncio.ensure_future(ask(server, session))
        await asyncio.sleep(0.15)
        await server.post("/admin/weights", {"version": 2})
        await call
        (node,) = await server.nodes(session, versions="token")
        count = node["metadata"]["num_generated"]
        assert node["metadata"]["weight_versions"] == [[0, count, [1, 2]]]
        assert node["versions"][-count:] == ["1|2"] * count

    async def test_an_engine_that_fails_is_named(self, rolltap_serve, rolltap_tokenizer):
        class Stuck(ScriptedTokenBackend):
            async def pause(self, mode):
                raise ConnectionError("no route")

        server = await rolltap_serve(Stuck(rolltap_tokenizer))
        status, answer = await server.post("/admin/pause", {})
        assert (status, answer["error"]["code"]) == (502, "engine_failed")
        assert "given-0 of test-model: ConnectionError: no route" in answer["error"]["message"]

    @pytest.mark.parametrize(
        ("path", "body", "word"),
        [
            ("pause", {"mode": "hard"}, "mode"),
            ("weights", {}, "version"),
            ("weights", {"version": [1]}, "version"),
            ("resume", {"vresion": 1}, "vresion"),
            ("weights", {"version": 1, "model": "nobody"}, "nobody"),
        ],
    )
    async def test_a_wrong_body_names_the_field(self, server, path, body, word):
        status, answer = await server.post(f"/admin/{path}", body)
        assert status in {400, 404}
        assert word in answer["error"]["message"]

    async def test_weights_that_no_engine_can_load_are_said(self, server):
        status, answer = await server.post("/admin/weights", {"version": 1, "path": "/tmp/w"})
        assert (status, "can't load weights" in answer["error"]["message"]) == (502, True)
        assert answer["versions"] == {}

    @pytest.mark.parametrize("path", ["pause", "resume", "weights"])
    async def test_a_key_is_needed_where_there_are_some(self, rolltap_serve, rolltap_tokenizer, path):
        server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer), config=KEYS)
        body = {"version": 1} if path == "weights" else {}
        assert (await server.post(f"/admin/{path}", body))[0] == 401
        async with server.http.post(
            f"/admin/{path}", json=body, headers={"Authorization": "Bearer secret"}
        ) as response:
            assert response.status == 200
