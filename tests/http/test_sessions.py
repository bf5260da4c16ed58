"""Sessions over HTTP: created, listed, used, deleted, expired; and health and models beside them."""

import asyncio
import time

import openai
import pytest

from rolltap.server.state import SESSIONS
from rolltap.testing import MODEL, Reply, ScriptedTokenBackend

CHAT = {"messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
async def server(rolltap_serve, rolltap_tokenizer):
    return await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, lambda ids, sampling: "Hi."))


async def test_health_tells_the_model_and_the_sessions(server):
    await server.session()
    async with server.http.get("/health") as response:
        body = await response.json()
        assert response.status == 200
        assert response.headers["x-request-id"]
    assert (body["status"], body["model"], body["sessions"]) == ("ok", MODEL, 1)
    assert body["backends"] == [
        {
            "model": MODEL,
            "name": "given-0",
            "plugin": "GivenBackends",
            "healthy": True,
            "in_flight": 0,
            "last_error": None,
        }
    ]
    assert body["record"] == {"nodes": 0, "untrainable": 0, "drifted": 0, "aborted": 0}


@pytest.mark.parametrize("in_session", [False, True])
async def test_models_are_listed_as_openai_does(server, openai_client, in_session):
    client = openai_client(server, await server.session() if in_session else "")
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError, match="org/nonesuch"):
        await client.models.retrieve("org/nonesuch")


async def test_a_new_session_tells_its_settings(server):
    before = time.time()
    status, body = await server.post("/sessions/create", {})
    assert status == 200
    assert set(body) == {"uuid", "model_name", "tool_parser", "base_url", "created_at"}
    assert (body["model_name"], body["tool_parser"], body["base_url"]) == (MODEL, "hermes", None)
    assert before <= body["created_at"] <= time.time()


async def test_a_session_needs_no_body(server):
    async with server.http.post("/sessions/create") as response:
        assert response.status == 200


async def test_sessions_are_listed(server):
    made = [await server.session() for _ in range(3)]
    await server.post(f"/{made[1]}/v1/chat/completions", CHAT)
    async with server.http.get("/sessions") as response:
        listed = (await response.json())["sessions"]
    assert [session["uuid"] for session in listed] == made
    assert [session["num_nodes"] for session in listed] == [0, 1, 0]
    assert set(listed[0]) == {
        "uuid", "model_name", "tool_parser", "base_url", "created_at", "last_accessed", "num_nodes", "num_calls",
        "num_tokens", "group", "labels", "state", "in_flight",
    }  # fmt: skip


async def test_a_deleted_session_is_gone(server):
    session = await server.session()
    await server.post(f"/{session}/v1/chat/completions", CHAT)
    async with server.http.delete(f"/{session}") as response:
        assert (response.status, await response.json()) == (200, {"status": "deleted", "uuid": session})
    for method, path in [
        ("GET", f"/{session}/nodes"),
        ("DELETE", f"/{session}"),
        ("GET", f"/{session}/v1/models"),
    ]:
        async with server.http.request(method, path) as response:
            assert response.status == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nowhere/nodes"),
        ("DELETE", "/nowhere"),
        ("POST", "/nowhere/v1/chat/completions"),
        ("POST", "/nowhere/v1/chat/completions/render"),
        ("POST", "/nowhere/v1/completions"),
    ],
)
async def test_an_unknown_session_is_a_404_with_the_way_out(server, method, path):
    async with server.http.request(method, path, json={**CHAT, "prompt": "x"}) as response:
        error = (await response.json())["error"]
    assert response.status == 404
    assert error["code"] == "session_not_found"
    assert "'nowhere'" in error["message"]
    assert "/sessions/create" in error["message"]
    assert set(error) == {"message", "type", "code", "param"}


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"tool_parser": "nonesuch"}, 400, ["'nonesuch'", "rolltap plugins"]),
        ({"model": "nonesuch"}, 404, ["'nonesuch'", MODEL]),
        ({"base_url": "http://elsewhere:1"}, 404, ["'http://elsewhere:1'", "given-0"]),
        ({"sampling": {"temperature": "hot"}}, 400, ["temperature"]),
        ({"sampling": []}, 400, ["sampling"]),
        ({"track_tree": "yes"}, 400, ["track_tree"]),
        ({"colour": "red"}, 400, ["colour"]),
    ],
)
async def test_wrong_settings_are_named(server, body, status, words):
    got, answer = await server.post("/sessions/create", body)
    assert got == status
    for word in words:
        assert word in answer["error"]["message"]
    async with server.http.get("/sessions") as response:
        assert (await response.json())["sessions"] == []


async def test_past_max_sessions_a_429_says_when_to_come_back(rolltap_serve, rolltap_tokenizer):
    server = await rolltap_serve(
        ScriptedTokenBackend(rolltap_tokenizer), config={"server": {"max_sessions": 1}}
    )
    await server.session()
    async with server.http.post("/sessions/create", json={}) as response:
        assert response.status == 429
        assert int(response.headers["retry-after"]) > 0
        assert "max_sessions" in (await response.json())["error"]["message"]


async def test_an_unused_session_expires(server):
    session = await server.session()
    sessions = server.app[SESSIONS]
    await sessions.expire()
    assert session in sessions
    (await sessions.get(session)).last_accessed -= 86400 + 1
    sessions._known[session] -= 86400 + 1
    await sessions.expire()
    assert session not in sessions


async def test_a_session_can_be_named_by_header_or_key(server):
    for headers in ("x-rolltap-session", "x-api-key", "Authorization"):
        session = await server.session()
        value = f"Bearer {session}" if headers == "Authorization" else session
        async with server.http.post("/v1/chat/completions", json=CHAT, headers={headers: value}) as response:
            assert response.status == 200
        assert len(await server.nodes(session)) == 1


async def test_an_unknown_session_in_the_header_is_no_session_less_request(server):
    async with server.http.post(
        "/v1/chat/completions", json=CHAT, headers={"x-rolltap-session": "nowhere"}
    ) as response:
        assert response.status == 404


async def test_without_a_session_nothing_is_recorded(server):
    status, _ = await server.post("/v1/chat/completions", CHAT)
    assert status == 200
    async with server.http.get("/sessions") as response:
        assert (await response.json())["sessions"] == []


async def test_api_keys_guard_what_belongs_to_no_session(rolltap_serve, rolltap_tokenizer):
    server = await rolltap_serve(
        ScriptedTokenBackend(rolltap_tokenizer, lambda ids, sampling: "Hi."),
        config={"server": {"api_keys": ["k1", "k2"]}},
    )
    guarded = [
        ("POST", "/sessions/create"),
        ("GET", "/sessions"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
    ]
    for method, path in guarded:
        for headers, status in [({}, 401), ({"x-api-key": "no"}, 401), ({"Authorization": "Bearer k2"}, 200)]:
            async with server.http.request(
                method, path, json=CHAT if "v1" in path else {}, headers=headers
            ) as response:
                assert response.status == status, (path, headers)
    async with server.http.post("/sessions/create", json={}, headers={"x-api-key": "k1"}) as response:
        session = (await response.json())["uuid"]
    status, _ = await server.post(f"/{session}/v1/chat/completions", CHAT)
    assert status == 200
    async with server.http.get("/health") as response:
        assert response.status == 200


async def test_a_probe_finds_the_server_and_its_sessions(server):
    session = await server.session()
    for path, status in [("/", 200), (f"/{session}", 200), ("/nowhere", 404)]:
        async with server.http.head(path) as response:
            assert response.status == status


async def test_a_session_deleted_in_flight_drops_its_record(rolltap_serve, rolltap_tokenizer):
    server = await rolltap_serve(
        ScriptedTokenBackend(rolltap_tokenizer, [Reply(text="slow answer", delay_s=0.05)])
    )
    session = await server.session()
    call = asyncio.ensure_future(server.post(f"/{session}/v1/chat/completions", CHAT))
    await asyncio.sleep(0.1)
    async with server.http.delete(f"/{session}") as response:
        assert response.status == 200
    status, body = await call
    assert (status, body["error"]["code"]) == (404, "session_not_found")
    async with server.http.get("/health") as response:
        assert (await response.json())["sessions"] == 0
