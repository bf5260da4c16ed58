"""`x-rolltap-trace: 1`: which plugin answered which hook, and how long it took; names and sizes, never contents."""

import asyncio
import json

import pytest

import rolltap
from rolltap.plugins import tracing
from rolltap.testing import ScriptedChatBackend, ScriptedTokenBackend

TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]
CHAT = {"messages": [{"role": "user", "content": "secret question"}], "tools": TOOLS}
HEADERS = {"x-rolltap-trace": "1"}


class Mine:
    @rolltap.hookimpl
    async def select_backend(self, backends):
        await asyncio.sleep(0.02)
        return backends[0]

    @rolltap.hookimpl
    def record_node(self): ...


@pytest.fixture
async def server(rolltap_serve, rolltap_tokenizer):
    backend = ScriptedTokenBackend(rolltap_tokenizer, lambda ids, sampling: "secret answer")
    return await rolltap_serve(backend, plugins=[Mine()])


def check(trace, *, first):
    hooks = [step["hook"] for step in trace]
    assert hooks == [
        *(["message_converter"] if first else []),
        "select_backend",
        "tool_parser",
        "record_node",
    ]
    by_hook = {step["hook"]: step for step in trace}
    chosen = by_hook["select_backend"]
    assert (chosen["plugin"], chosen["asked"]) == ("Mine", 1)
    assert 20 <= chosen["ms"] < 1000
    assert chosen["sizes"] == {"backends": 1}
    parser = by_hook["tool_parser"]
    assert parser["plugin"] == "hermes"
    assert parser["asked"] > 5, "those that were asked before it are counted"
    assert parser["sizes"] == {"tools": 1}
    assert by_hook["record_node"]["plugin"] == "Mine"
    assert "secret" not in json.dumps(trace)


async def test_a_plain_reply_has_it_in_a_header(server):
    session = await server.session()
    for first in (True, False):
        path = f"/{session}/v1/chat/completions"
        async with server.http.post(path, json=CHAT, headers=HEADERS) as response:
            assert response.status == 200
            check(json.loads(response.headers["x-rolltap-trace"]), first=first)


@pytest.mark.parametrize(("path", "last"), [("/v1/chat/completions", "data: [DONE]"), ("/v1/messages", None)])
async def test_a_stream_ends_with_it_as_a_comment(server, path, last):
    session = await server.session()
    body = {**CHAT, "stream": True, "max_tokens": 100}
    if last is None:
        body["tools"] = [{"name": "search", "input_schema": {"type": "object"}}]
    async with server.http.post(f"/{session}{path}", json=body, headers=HEADERS) as response:
        *frames, comment, nothing = (await response.text()).split("\n\n")
    assert nothing == ""
    assert last is None or frames[-1] == last
    name, _, trace = comment.removeprefix(": ").partition(" ")
    assert name == "x-rolltap-trace"
    check(json.loads(trace), first=True)


async def test_it_is_off_unless_it_is_asked_for_also_on_the_same_connection(server):
    session = await server.session()
    for headers in (HEADERS, {}, {"x-rolltap-trace": "0"}):
        path = f"/{session}/v1/chat/completions"
        async with server.http.post(path, json=CHAT, headers=headers) as response:
            assert ("x-rolltap-trace" in response.headers) == (headers is HEADERS)
        async with server.http.post(path, json={**CHAT, "stream": True}, headers=headers) as response:
            assert (": x-rolltap-trace [" in await response.text()) == (headers is HEADERS)
    assert tracing.current_trace() is None


async def test_a_failure_says_who(rolltap_serve):
    class Fails:
        @rolltap.hookimpl
        def select_backend(self):
            raise ValueError("no")

    server = await rolltap_serve(ScriptedChatBackend(), plugins=[Fails()])
    async with server.http.post("/v1/chat/completions", json=CHAT, headers=HEADERS) as response:
        assert response.status == 500
        step = json.loads(response.headers["x-rolltap-trace"])[-1]
    assert (step["hook"], step["plugin"], step["failed"]) == ("select_backend", "Fails", True)


async def test_nobody_answered(rolltap_serve):
    config = {"plugins": {"disable": ["routing"]}}
    server = await rolltap_serve(ScriptedChatBackend(["Hi."]), config=config)
    async with server.http.post("/v1/chat/completions", json=CHAT, headers=HEADERS) as response:
        step = json.loads(response.headers["x-rolltap-trace"])[-1]
    assert (step["hook"], step.get("plugin"), step["asked"]) == ("select_backend", None, 0)


def test_a_long_one_is_cut_so_that_a_client_can_read_the_header():
    trace = [tracing.Step(hook="tool_parser", plugin="x" * 90, asked=7) for _ in range(200)]
    text = tracing.encoded(trace)
    *shown, left_out = json.loads(text)
    assert len(text) < 8000
    assert left_out == {"left_out": 200 - len(shown)}
    assert len(shown) > 30
    assert json.loads(tracing.encoded(trace[:3]))[-1]["plugin"] == "x" * 90
