"""A request that comes twice is one call: whoever joins it gets everything, and it ends with the last who leaves."""

import asyncio
import json

import pytest

from rolltap.testing import Reply, ScriptedTokenBackend

CALL = 'Look: <tool_call>\n{"name": "run", "arguments": {"cmd": "ls -l"}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]
BODY = {"messages": [{"role": "user", "content": "a"}], "tools": TOOLS}
SLOW = Reply(text=CALL, delay_s=0.02)


@pytest.fixture
async def start(rolltap_serve, rolltap_tokenizer):
    async def begin(*script, **options):
        backend = ScriptedTokenBackend(rolltap_tokenizer, script)
        server = await rolltap_serve(backend, **options)
        return server, backend, f"/{await server.session()}"

    return begin


def said(text):
    """The text and the calls of a streamed reply."""
    content, names, arguments = "", [], ""
    for line in text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                delta = choice["delta"]
                content += delta.get("content") or ""
                for call in delta.get("tool_calls", ()):
                    names += [call["function"]["name"]] if "name" in call["function"] else []
                    arguments += call["function"]["arguments"]
    return content, names, json.loads(arguments)


async def stream(server, path, **options):
    async with server.http.post(
        f"{path}/v1/chat/completions", json={**BODY, "stream": True}, **options
    ) as got:
        return await got.text()


@pytest.mark.parametrize("wait_s", [0.0, 0.1, 0.2, 0.3, 0.5])
async def test_one_that_joins_at_any_time_gets_everything_once(start, wait_s):
    server, backend, path = await start(SLOW)
    first = asyncio.ensure_future(stream(server, path))
    await asyncio.sleep(0.02 + wait_s)
    second = await stream(server, path)
    expected = ("Look:", ["run"], {"cmd": "ls -l"})
    assert said(await first) == said(second) == expected
    assert len(backend.calls) == 1
    (node,) = await server.nodes(path[1:])
    assert node["metadata"]["delivery"] == "delivered"


async def test_plain_ones_join_too(start):
    server, backend, path = await start(SLOW)
    answers = await asyncio.gather(*(server.post(f"{path}/v1/chat/completions", BODY) for _ in range(3)))
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0] == 200
    assert len(backend.calls) == 1


@pytest.mark.parametrize("streamed", [True, False])
async def test_the_others_get_all_where_the_first_client_leaves(start, streamed):
    server, backend, path = await start(Reply(text=CALL, delay_s=0.03))
    body = {**BODY, "stream": streamed}

    async def ask():
        async with server.http.post(f"{path}/v1/chat/completions", json=body) as got:
            return await got.text()

    first = asyncio.ensure_future(ask())
    await asyncio.sleep(0.15)
    second = asyncio.ensure_future(ask())
    await asyncio.sleep(0.15)
    first.cancel()
    text = await second
    assert "ls -l" in text.replace("\\", "")
    assert len(backend.calls) == 1
    assert not backend.calls[0].closed
    (node,) = await server.nodes(path[1:])
    assert node["metadata"]["delivery"] == "delivered"
    assert node["metadata"]["finish_reason"] == "tool_calls"


async def test_the_engine_is_stopped_once_all_have_left(start):
    server, backend, path = await start(Reply(text=CALL * 5, delay_s=0.03))
    tasks = [asyncio.ensure_future(stream(server, path)) for _ in range(2)]
    await asyncio.sleep(0.3)
    for task in tasks:
        task.cancel()
        await asyncio.sleep(0.05)
    async with asyncio.timeout(5):
        while not await server.nodes(path[1:]):  # noqa: ASYNC110 - it is recorded in the background
            await asyncio.sleep(0.02)
    assert backend.calls[0].closed
    (node,) = await server.nodes(path[1:])
    assert (node["metadata"]["delivery"], node["metadata"]["finish_reason"]) == ("aborted", "abort")


async def test_a_retry_after_an_answer_is_replayed_and_after_a_failure_asked_again(start):
    server, backend, path = await start("Hi.", Reply(text="x", error=ConnectionError("gone")), "Again.")
    again = {"headers": {"x-stainless-retry-count": "1"}}
    first = await stream(server, path)
    assert [line for line in first.splitlines() if "content" in line]
    second = await stream(server, path, **again)
    assert '"content":"Hi."' in second
    assert len(backend.calls) == 1
    other = {**BODY, "messages": [{"role": "user", "content": "b"}]}
    assert (await server.post(f"{path}/v1/chat/completions", other))[0] == 502
    async with server.http.post(f"{path}/v1/chat/completions", json=other, **again) as got:
        assert (got.status, (await got.json())["choices"][0]["message"]["content"]) == (200, "Again.")
    assert len(backend.calls) == 3


@pytest.mark.parametrize(
    ("path", "body", "mark"),
    [
        ("/v1/chat/completions", BODY, b'"timeout"'),
        (
            "/v1/messages",
            {"messages": BODY["messages"], "max_tokens": 99},
            b'event: error\ndata: {"type":"error","error":{"type":"timeout_error"',
        ),
        ("/v1/responses", {"input": "a"}, b"event: response.failed"),
    ],
)
async def test_a_time_limit_in_mid_stream_is_the_dialects_own_error(start, path, body, mark):
    slow = Reply(text="word " * 40, delay_s=0.03)
    server, backend, session = await start(slow, config={"server": {"request_timeout_s": 0.4}})
    async with server.http.post(f"{session}{path}", json={**body, "stream": True}) as got:
        text = await got.read()
    assert got.status == 200
    assert mark in text
    assert text.count(b"HTTP/1.1") == 0
    assert backend.calls[0].closed
    (node,) = await server.nodes(session[1:])
    assert "request_timeout_s = 0.4" in node["metadata"]["error"]
    assert node["metadata"]["finish_reason"] == "abort"


async def test_a_call_ends_with_its_session(start):
    server, backend, session = await start(Reply(text="word " * 40, delay_s=0.03))
    call = asyncio.ensure_future(stream(server, session))
    await asyncio.sleep(0.3)
    async with server.http.delete(session) as got:
        assert got.status == 200
    assert "was deleted while this call was in flight" in await call
    assert backend.calls[0].closed
