"""A client's mistake is a clear 4xx in its own dialect; nothing is recorded and the server goes on."""

import asyncio
import json

import pytest
from yarl import URL

import rolltap
from rolltap.server import dialects
from rolltap.testing import Reply, ScriptedTokenBackend

USER = {"role": "user", "content": "a"}


@pytest.fixture
async def server(rolltap_serve, rolltap_tokenizer):
    return await rolltap_serve(
        ScriptedTokenBackend(rolltap_tokenizer, lambda ids, sampling: "Hi."),
        config={"server": {"max_body_mb": 0.01}},
    )


async def rejected(server, session, body, path="/v1/chat/completions", status=400):
    """The error; and see that the session is empty and still works."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with server.http.post(
        f"/{session}{path}", data=data, headers={"content-type": "application/json"}
    ) as got:
        answer = await got.json()
        assert got.status == status, answer
        assert got.headers["x-request-id"]
    assert await server.nodes(session) == []
    error = answer["error"]
    assert set(error) == {"message", "type", "code", "param"}
    status, _ = await server.post(f"/{session}/v1/chat/completions", {"messages": [USER]})
    assert status == 200
    return error


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"nul", b'{"messages": [}'])
async def test_broken_json(server, body):
    error = await rejected(server, await server.session(), body)
    assert "JSON" in error["message"]


@pytest.mark.parametrize("body", [[], "text", 1, None])
async def test_json_that_is_no_object(server, body):
    error = await rejected(server, await server.session(), body)
    assert "object" in error["message"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages[0].content[0]"),
        ({"messages": [USER], "temperature": "hot"}, "temperature"),
        ({"messages": [USER], "max_tokens": -1}, "max_tokens"),
        ({"messages": [USER], "n": 0}, "n"),
        ({"messages": [USER], "stream": "yes"}, "stream"),
        ({"messages": [USER], "tools": "search"}, "tools"),
        ({"messages": [USER], "tools": [{"type": "function"}]}, "tools[0]"),
        ({"messages": [USER], "stop": [1]}, "stop"),
    ],
)
async def test_a_wrong_field_is_named(server, body, field):
    error = await rejected(server, await server.session(), body)
    assert field in (error["param"] or "") or field in error["message"]
    assert error["type"] == "invalid_request_error"


async def test_an_unknown_model_lists_the_known(server):
    status, body = await server.post("/v1/chat/completions", {"model": "nonesuch", "messages": [USER]})
    assert status == 404
    error = body["error"]
    assert error["code"] == "model_not_found"
    assert "'nonesuch'" in error["message"]
    assert "test-model" in error["message"]


async def test_in_a_session_an_unknown_model_is_the_sessions_own(server):
    session = await server.session()
    body = {"model": "claude-haiku-4-5", "messages": [USER]}
    status, answer = await server.post(f"/{session}/v1/chat/completions", body)
    assert (status, answer["model"]) == (200, "test-model")
    (node,) = await server.nodes(session)
    assert (node["metadata"]["model"], node["metadata"]["asked_model"]) == ("test-model", "claude-haiku-4-5")


async def test_a_body_over_the_limit(server):
    body = {"messages": [{"role": "user", "content": "x" * 20_000}]}
    error = await rejected(server, await server.session(), body, status=413)
    assert error["code"] == "request_too_large"
    assert "max_body_mb" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing/here/at/all", 404), ("PUT", "/sessions", 405), ("GET", "/v1/chat/completions", 405)],
)
async def test_other_paths_and_methods_are_json_too(server, method, path, status):
    async with server.http.request(method, path) as response:
        assert response.status == status
        error = (await response.json())["error"]
    assert path in error["message"]


async def test_a_mask_that_is_none(server):
    session = await server.session()
    async with server.http.get(f"/{session}/nodes", params={"mask": "some"}) as response:
        assert response.status == 400
        assert "'some'" in (await response.json())["error"]["message"]


async def test_a_parameter_that_the_backend_does_not_take(rolltap_serve, rolltap_tokenizer):
    class Picky(ScriptedTokenBackend):
        parameters = frozenset({"max_tokens", "temperature"})

    backend = Picky(rolltap_tokenizer, lambda ids, sampling: "Hi.")
    server = await rolltap_serve(backend)
    session = await server.session()
    for unknown in ({"top_p": 0.5}, {"wizardry": True}):
        error = await rejected(server, session, {"messages": [USER], **unknown})
        assert next(iter(unknown)) in error["message"]
        assert error["param"] == next(iter(unknown))
        session = await server.session()


async def test_an_error_in_a_stream_that_has_begun_ends_it(rolltap_serve, rolltap_tokenizer):
    reply = Reply(text="Once upon a time", error=RuntimeError("the engine caught fire"))
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, [reply]))
    session = await server.session()
    body = {"messages": [USER], "stream": True}
    async with server.http.post(f"/{session}/v1/chat/completions", json=body) as response:
        assert response.status == 200
        frames = (await response.text()).strip().split("\n\n")
    assert "the engine caught fire" in frames[-2]
    assert frames[-1] == "data: [DONE]"
    assert await server.nodes(session) == []


async def test_an_error_before_the_first_byte_has_its_status(rolltap_serve, rolltap_tokenizer):
    class Failing(ScriptedTokenBackend):
        def _next(self, prompt_ids, sampling):
            raise RuntimeError("rate limit hit")

    server = await rolltap_serve(Failing(rolltap_tokenizer))
    session = await server.session()
    for stream in (False, True):
        status, body = await server.post(
            f"/{session}/v1/chat/completions", {"messages": [USER], "stream": stream}
        )
        assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
    assert await server.nodes(session) == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/sessions/create"])
async def test_a_body_that_is_not_encoded_as_it_says_is_refused(
    rolltap_serve, rolltap_tokenizer, path, caplog
):
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer))
    async with server.http.post(path, data=b"{}", headers={"content-encoding": "gzip"}) as response:
        body = await response.json()
        assert (response.status, body["error"]["type"]) == (400, "invalid_request_error")
        assert "Can not decode content-encoding: gzip" in body["error"]["message"]
        assert response.headers["connection"] == "close"
    assert caplog.text == ""
    async with server.http.get("/health") as response:
        assert response.status == 200


async def test_a_body_that_breaks_off_is_not_waited_for_without_end(
    rolltap_serve, rolltap_tokenizer, monkeypatch
):
    monkeypatch.setattr(dialects, "RECEIVE_WITHIN_S", 0.1)
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer))
    reader, writer = await asyncio.open_connection("127.0.0.1", URL(server.url).port)
    writer.write(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    answer = await asyncio.wait_for(reader.readuntil(b'"}'), 5)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in answer.lower()
    assert b'"timeout_error"' in answer
    assert b"the body did not come within 0.1 s" in answer
    writer.close()


async def test_a_converters_own_fault_is_named(rolltap_serve, rolltap_tokenizer):
    class Faulty(rolltap.MessageConverter):
        dialect = "faulty"

        def decode(self, body):
            return body["q"]

        encode = stream = None

        def error(self, info, request_id):
            return rolltap.ErrorReply(status=info.status, body={"error": info.message})

    class Plugin:
        @rolltap.hookimpl
        def message_converter(self, dialect):
            return Faulty() if dialect == "faulty" else None

        @rolltap.hookimpl
        def register_routes(self, app):
            rolltap.add_dialect(app, "faulty", "/v1/faulty")

    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer), plugins=[Plugin()])
    status, body = await server.post("/v1/faulty", {})
    assert status == 500
    assert "'faulty'" in body["error"]
    assert "KeyError: 'q'" in body["error"]
