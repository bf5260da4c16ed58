"""Streams as clients behind proxies need them: bytes before the first token, pings, errors in their place, in every dialect."""

import asyncio
from typing import Any

import anthropic
import openai
import pytest

from rolltap import ChatDelta, UpstreamError
from rolltap.server import dialects
from rolltap.testing import MODEL, Reply, ScriptedChatBackend, ScriptedTokenBackend

USER: Any = [{"role": "user", "content": "a"}]
DIALECTS = {
    "chat": ("/v1/chat/completions", {"messages": USER}, b'"role":"assistant"', b": ping"),
    "completions": ("/v1/completions", {"prompt": "a"}, b"", b": ping"),
    "responses": ("/v1/responses", {"input": "a"}, b"event: response.created", b": ping"),
    "messages": (
        "/v1/messages",
        {"messages": USER, "max_tokens": 9},
        b"event: message_start",
        b"event: ping",
    ),
}


@pytest.fixture(params=DIALECTS)
def dialect(request):
    return DIALECTS[request.param]


def held(tokenizer, event, text="~"):
    """A token backend that says nothing before an event."""

    class Held(ScriptedTokenBackend):
        async def generate(self, request):
            await event.wait()
            async for delta in super().generate(request):
                yield delta

    return Held(tokenizer, lambda ids, sampling: text)


async def test_the_first_bytes_do_not_wait_for_the_first_token(
    rolltap_serve, rolltap_tokenizer, monkeypatch, dialect
):
    monkeypatch.setattr(dialects, "ACCEPT_WITHIN_S", 0.05)
    path, body, first, _ = dialect
    go_on = asyncio.Event()
    server = await rolltap_serve(held(rolltap_tokenizer, go_on))
    async with asyncio.timeout(5), server.http.post(path, json={**body, "stream": True}) as response:
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        begun = await response.content.readuntil(b"\n\n") if first else b""
        assert first in begun
        go_on.set()
        assert b"~" in await response.read()


async def test_a_long_silence_is_broken_by_pings(rolltap_serve, rolltap_tokenizer, monkeypatch, dialect):
    monkeypatch.setattr(dialects, "ACCEPT_WITHIN_S", 0.05)
    monkeypatch.setattr(dialects, "PING_AFTER_S", 0.1)
    path, body, _, ping = dialect
    go_on = asyncio.Event()
    server = await rolltap_serve(held(rolltap_tokenizer, go_on))
    async with asyncio.timeout(5), server.http.post(path, json={**body, "stream": True}) as response:
        came = b""
        while came.count(ping) < 2:
            came += await response.content.readuntil(b"\n\n")
        go_on.set()
        came += await response.read()
    assert b"~" in came
    for frame in came.split(b"\n\n")[:-1]:
        assert frame.startswith((b"data: ", b"event: ", b": ping"))


async def test_the_sdks_take_no_notice_of_pings(rolltap_serve, rolltap_tokenizer, monkeypatch, openai_client):
    monkeypatch.setattr(dialects, "PING_AFTER_S", 0.02)
    slow = Reply(text="One two three.", delay_s=0.06)
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, lambda ids, sampling: slow))
    client = openai_client(server)
    async with client.chat.completions.stream(model=MODEL, messages=USER) as chat:
        assert (await chat.get_final_completion()).choices[0].message.content == "One two three."
    async with client.responses.stream(model=MODEL, input="a") as response:
        assert (await response.get_final_response()).output_text == "One two three."
    async with (
        anthropic.AsyncAnthropic(base_url=server.url, api_key="x") as theirs,
        theirs.messages.stream(model=MODEL, messages=USER, max_tokens=9) as message,
    ):
        assert await message.get_final_text() == "One two three."


async def test_a_refusal_after_the_first_bytes_is_told_inside_the_stream(
    rolltap_serve, rolltap_tokenizer, monkeypatch, dialect
):
    monkeypatch.setattr(dialects, "ACCEPT_WITHIN_S", 0.05)
    path, body, first, _ = dialect
    go_on = asyncio.Event()

    class Refusing(ScriptedTokenBackend):
        async def generate(self, request):
            await go_on.wait()
            raise UpstreamError("no room for you", status=503)
            yield

    server = await rolltap_serve(Refusing(rolltap_tokenizer))
    session = await server.session()
    async with (
        asyncio.timeout(5),
        server.http.post(f"/{session}{path}", json={**body, "stream": True}) as response,
    ):
        assert response.status == 200
        go_on.set()
        came = await response.read()
    assert first in came
    assert came.count(b"no room for you") == 1
    assert await server.nodes(session) == []


class TestAnswersOfTheSDKs:
    """What a client's own code sees of an upstream's failure: its class, when to come back, the request's id."""

    async def refused(self, rolltap_serve, error):
        return await rolltap_serve(ScriptedChatBackend([[error]] * 8))

    @pytest.mark.parametrize("stream", [False, True])
    async def test_retry_after_is_forwarded(self, rolltap_serve, openai_client, stream):
        busy = UpstreamError("slow down", status=429, headers={"retry-after": "17"})
        server = await self.refused(rolltap_serve, busy)
        with pytest.raises(openai.RateLimitError) as ours:
            await openai_client(server).chat.completions.create(model=MODEL, messages=USER, stream=stream)
        with pytest.raises(openai.RateLimitError) as responses:
            await openai_client(server).responses.create(model=MODEL, input="a", stream=stream)
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="x", max_retries=0) as client:
            with pytest.raises(anthropic.RateLimitError) as theirs:
                await client.messages.create(model=MODEL, messages=USER, max_tokens=9, stream=stream)
        for caught in (ours, responses, theirs):
            assert caught.value.response.headers["retry-after"] == "17"
            assert caught.value.request_id.startswith("req_")
            assert "slow down" in caught.value.message

    @pytest.mark.parametrize("in_session", [False, True])
    async def test_an_unknown_model_is_refused_in_anthropics_words(self, rolltap_serve, in_session):
        server = await rolltap_serve(ScriptedChatBackend(), config={"server": {"unknown_model": "error"}})
        base = f"{server.url}/{await server.session()}" if in_session else server.url
        async with anthropic.AsyncAnthropic(base_url=base, api_key="x", max_retries=0) as client:
            with pytest.raises(anthropic.NotFoundError) as caught:
                await client.messages.create(model="no-such", messages=USER, max_tokens=9)
        body: Any = caught.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
        assert MODEL in body["error"]["message"]
        assert body["request_id"] == caught.value.request_id

    @pytest.mark.parametrize("stream", [False, True])
    async def test_an_overflow_is_told_in_the_words_that_claude_code_looks_for(self, rolltap_serve, stream):
        overflow = UpstreamError("maximum context length is 8", status=400, code="context_length_exceeded")
        server = await self.refused(rolltap_serve, overflow)
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="x", max_retries=0) as client:
            with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
                await client.messages.create(model=MODEL, messages=USER, max_tokens=9, stream=stream)


@pytest.mark.parametrize("name", ["chat", "responses", "messages"])
async def test_a_client_that_leaves_is_no_error_in_the_log(rolltap_serve, name, caplog):
    path, body, _, _ = DIALECTS[name]
    closed = asyncio.Event()

    class Endless(ScriptedChatBackend):
        async def chat(self, request):
            try:
                while True:
                    yield ChatDelta(text="word " * 1000)
                    await asyncio.sleep(0)
            finally:
                closed.set()

    server = await rolltap_serve(Endless())
    session = await server.session()
    for prefix in ("", f"/{session}"):
        closed.clear()
        async with server.http.post(prefix + path, json={**body, "stream": True}) as response:
            await response.content.readany()
            response.close()
        await asyncio.wait_for(closed.wait(), 5)
    await asyncio.sleep(0.05)
    assert [record for record in caplog.records if record.levelname in {"ERROR", "CRITICAL"}] == []
    (node,) = await server.nodes(session)
    assert node["metadata"]["delivery"] == "aborted"
