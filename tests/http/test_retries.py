"""Retries, joined requests and clients that leave: one rollout, and nothing lost."""

import asyncio

import aiohttp
import pytest

from rolltap.testing import Reply, ScriptedTokenBackend, assert_exact

USER = {"role": "user", "content": "a"}
CHAT = {"messages": [USER]}
RETRY = {"x-stainless-retry-count": "1"}
SLOW = Reply(text="One two three four five six seven", delay_s=0.03)


@pytest.fixture
async def start(rolltap_serve, rolltap_tokenizer):
    async def begin(*script):
        backend = ScriptedTokenBackend(rolltap_tokenizer, script)
        server = await rolltap_serve(backend)
        return server, backend, await server.session()

    return begin


async def ask(server, session, body=CHAT, **headers):
    async with server.http.post(f"/{session}/v1/chat/completions", json=body, headers=headers) as response:
        assert response.status == 200
        if body.get("stream"):
            return await response.text()
        answer = await response.json()
        return answer["id"], answer["choices"][0]["message"]["content"]


async def eventually(check):
    for _ in range(200):
        result = await check()
        if result:
            return result
        await asyncio.sleep(0.02)
    raise AssertionError("it never came to be")


async def test_a_marked_retry_of_a_finished_call_is_replayed(start):
    server, backend, session = await start("One.")
    first = await ask(server, session)
    assert await ask(server, session, **RETRY) == first
    assert len(backend.calls) == 1
    assert len(await server.nodes(session)) == 1


async def test_an_idempotency_key_marks_a_retry(start):
    server, backend, session = await start("One.", "Two.")
    first = await ask(server, session, **{"idempotency-key": "k1"})
    assert await ask(server, session, **{"idempotency-key": "k1"}) == first
    assert (await ask(server, session, **{"idempotency-key": "k2"}))[1] == "Two."
    assert len(backend.calls) == 2


async def test_a_replay_can_be_streamed(start):
    server, backend, session = await start("One two three.")
    body = {**CHAT, "stream": True}
    first = await ask(server, session, body)
    again = await ask(server, session, body, **RETRY)
    assert len(backend.calls) == 1
    assert "One two three." in again
    assert first.split('"id":"')[1].split('"')[0] == again.split('"id":"')[1].split('"')[0]
    assert again.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("body", "headers"),
    [(CHAT, {}), ({**CHAT, "temperature": 0.5}, RETRY), (CHAT, {"x-stainless-retry-count": "0"})],
    ids=["unmarked", "another body", "first try"],
)
async def test_what_is_no_retry_is_asked_again(start, body, headers):
    server, backend, session = await start("One.", "Two.")
    await ask(server, session)
    assert (await ask(server, session, body, **headers))[1] == "Two."
    assert len(backend.calls) == 2
    assert len(await server.nodes(session)) == 2


async def test_sessions_do_not_share_replays(start):
    server, _, session = await start("One.", "Two.")
    await ask(server, session)
    assert (await ask(server, await server.session(), **RETRY))[1] == "Two."


@pytest.mark.parametrize("stream", [False, True])
async def test_the_same_request_in_flight_is_joined(start, stream):
    server, backend, session = await start(SLOW)
    body = {**CHAT, "stream": stream}
    answers = await asyncio.gather(*(ask(server, session, body) for _ in range(3)))
    assert answers[0] == answers[1] == answers[2]
    assert len(backend.calls) == 1
    (node,) = await server.nodes(session)
    assert node["metadata"]["delivery"] == "delivered"


async def test_two_samples_by_two_idempotency_keys(start):
    server, backend, session = await start(SLOW, SLOW)
    await asyncio.gather(*(ask(server, session, **{"idempotency-key": key}) for key in "ab"))
    assert len(backend.calls) == 2
    assert len(await server.nodes(session)) == 2


async def test_a_failed_call_is_not_replayed(start):
    server, _, session = await start(Reply(text="x", error=RuntimeError("broken")), "Two.")
    status, _ = await server.post(f"/{session}/v1/chat/completions", CHAT)
    assert status == 500
    assert (await ask(server, session, **RETRY))[1] == "Two."


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_stops_the_engine_and_leaves_its_part(start, stream):
    server, backend, session = await start(SLOW, "Two.")
    with pytest.raises(asyncio.TimeoutError):
        async with server.http.post(
            f"/{session}/v1/chat/completions",
            json={**CHAT, "stream": stream},
            timeout=aiohttp.ClientTimeout(total=0.15),
        ) as response:
            await response.read()
    (node,) = await eventually(lambda: server.nodes(session))
    (call,) = backend.calls
    assert call.closed
    assert node["metadata"]["delivery"] == "aborted"
    assert node["metadata"]["finish_reason"] == "abort"
    assert 0 < len(call.output_ids[0]) < len(backend.encode(SLOW.text))
    assert_exact(node, call)
    await ask(server, session, **RETRY)
    assert len(backend.calls) == 2


async def test_one_of_two_joined_leaves_and_the_other_gets_it_all(start):
    server, backend, session = await start(SLOW)
    leaver = asyncio.ensure_future(ask(server, session, {**CHAT, "stream": True}))
    stayer = asyncio.ensure_future(ask(server, session, {**CHAT, "stream": True}))
    await asyncio.sleep(0.1)
    leaver.cancel()
    text = await stayer
    assert text.endswith("data: [DONE]\n\n")
    assert not backend.calls[0].closed
    (node,) = await server.nodes(session)
    assert node["metadata"]["delivery"] == "delivered"


async def test_a_client_that_leaves_before_the_first_token_changes_nothing(start):
    server, backend, session = await start(Reply(text="Hi", delay_s=5), "Two.")
    with pytest.raises(asyncio.TimeoutError):
        async with server.http.post(
            f"/{session}/v1/chat/completions", json=CHAT, timeout=aiohttp.ClientTimeout(total=0.1)
        ) as response:
            await response.read()

    async def closed():
        return backend.calls and backend.calls[0].closed

    await eventually(closed)
    assert await server.nodes(session) == []
    assert (await ask(server, session))[1] == "Two."


@pytest.mark.parametrize("count", ["0", "00", "", "-1", "x", "²"])
async def test_what_is_no_number_of_retries_marks_none(start, count):
    server, _, session = await start("One.", "Two.")
    for answer in ("One.", "Two."):
        assert (await ask(server, session, **{"x-stainless-retry-count": count}))[1] == answer


async def test_a_number_of_retries_may_be_longer_than_python_reads(start):
    server, _, session = await start("One.")
    for _ in range(2):
        assert (await ask(server, session, **{"x-stainless-retry-count": "9" * 5000}))[1] == "One."
