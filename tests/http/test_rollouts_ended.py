"""What ends a rollout: rewards, sealing, limits, groups; and the stream of what is recorded."""

import asyncio
import json

import pytest

from rolltap.server.state import SESSIONS
from rolltap.testing import Reply, ScriptedTokenBackend, serve

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


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "null", "true"])
async def test_a_reward_is_a_finite_number(server, value):
    session = await server.session()
    data = f'{{"value": {value}}}'
    async with server.http.post(
        f"/{session}/reward", data=data, headers={"content-type": "application/json"}
    ) as got:
        assert got.status == 400, await got.text()
    async with server.http.get("/sessions") as got:
        (listed,) = (await got.json())["sessions"]
    assert "rewards" not in listed


async def test_a_seals_digest_outlives_the_server(rolltap_tokenizer, tmp_path):
    config = {"store": {"kind": "sqlite", "path": str(tmp_path / "log.db")}}
    async with serve(ScriptedTokenBackend(rolltap_tokenizer, ["Hi."]), config=config) as server:
        session = await server.session()
        await ask(server, session)
        _, sealed = await server.post(f"/{session}/seal", {})
    async with serve(ScriptedTokenBackend(rolltap_tokenizer), config=config) as server:
        await server.post(f"/{session}/reward", {"value": 1})
        assert (await server.post(f"/{session}/seal", {})) == (200, sealed)
        loaded = await server.app[SESSIONS].get(session)
        assert loaded.record.digest() == sealed["snapshot"]


async def test_a_call_that_comes_while_the_seal_waits_is_refused(rolltap_serve, rolltap_tokenizer):
    backend = ScriptedTokenBackend(rolltap_tokenizer, [Reply(text="slow answer " * 3, delay_s=0.03)])
    server = await rolltap_serve(backend)
    session = await server.session()
    first = asyncio.ensure_future(ask(server, session))
    async with asyncio.timeout(5):
        while not backend.calls:  # noqa: ASYNC110 - until the call is in flight
            await asyncio.sleep(0.01)
    sealing = asyncio.ensure_future(server.post(f"/{session}/seal", {}))
    loaded = await server.app[SESSIONS].get(session)
    async with asyncio.timeout(5):
        while not loaded._seals:  # noqa: ASYNC110 - until the seal waits
            await asyncio.sleep(0.005)
    status, answer = await ask(server, session, temperature=0.5)
    assert (status, answer["error"]["code"]) == (409, "session_sealed")
    assert (await first)[0] == 200
    assert (await sealing)[1]["num_nodes"] == 1


async def test_deleting_a_group_twice_at_once_deletes_each_session_once(server):
    for _ in range(4):
        await server.session(group="a")
    answers = await asyncio.gather(*(delete(server, "/sessions", group="a") for _ in range(2)))
    assert [status for status, _ in answers] == [200, 200]
    assert sum(body["deleted"] for _, body in answers) == 4


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

    async def test_calls_wait_until_every_engine_has_resumed(self, rolltap_serve, rolltap_tokenizer):
        class Restarting(ScriptedTokenBackend):
            """Does not answer the first time that it is to resume."""

            asked = 0

            async def pause(self, mode):
                pass

            async def resume(self):
                self.asked += 1
                if self.asked == 1:
                    raise ConnectionError("no route")

        server = await rolltap_serve(Restarting(rolltap_tokenizer, ["Hi."]))
        session = await server.session()
        assert (await server.post("/admin/pause", {}))[0] == 200
        call = asyncio.ensure_future(ask(server, session))
        status, answer = await server.post("/admin/resume", {})
        assert (status, answer["paused"]) == (502, True)
        assert "given-0 of test-model" in answer["error"]["message"]
        await asyncio.sleep(0.1)
        assert not call.done()
        status, answer = await server.post("/admin/resume", {})
        assert (status, answer["paused"], answer["paused_since"]) == (200, False, None)
        assert (await call)[0] == 200

    async def test_an_engine_that_does_not_answer_is_named(
        self, rolltap_serve, rolltap_tokenizer, monkeypatch
    ):
        class Silent(ScriptedTokenBackend):
            async def pause(self, mode):
                await asyncio.sleep(60)

        monkeypatch.setattr("rolltap.weights.ENGINE_ANSWER_S", 0.1)
        server = await rolltap_serve(Silent(rolltap_tokenizer))
        status, answer = await server.post("/admin/pause", {"mode": "abort"})
        assert (status, answer["error"]["code"]) == (502, "engine_failed")
        assert "given-0 of test-model: no answer within 0.1 s" in answer["error"]["message"]

    async def test_weights_without_a_version_of_their_own_are_told_by_the_one_that_was_set(self, server):
        session = await server.session()
        for version in (1, 2):
            await server.post("/admin/weights", {"version": version})
            await ask(server, session, messages=[{"role": "user", "content": f"a{version}"}])
        spans = [node["metadata"]["weight_versions"] for node in await server.nodes(session)]
        assert [[version for *_, version in each] for each in spans] == [[1], [2]]

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
