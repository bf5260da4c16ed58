"""What an operator relies on: health, readiness, an end that finishes what is in flight."""

import asyncio
import signal
import time

import pytest

from rolltap.errors import UpstreamError
from rolltap.testing import ScriptedChatBackend, ScriptedTokenBackend
from served import served

CHAT = {"messages": [{"role": "user", "content": "a"}]}
SLOW = """
import asyncio
import rolltap


class Slow(rolltap.ChatBackend):
    async def chat(self, request):
        for _ in range(int(request.messages[-1].text)):
            yield rolltap.ChatDelta(text="word ")
            await asyncio.sleep(0.05)
        yield rolltap.ChatDelta(finish_reason="stop")


create_backend = {"slow": Slow}
"""
CONFIG = """
[server]
drain_s = 1.0
[plugins]
dir = "mine"
[[models]]
name = "m"
backends = [{ kind = "slow" }]
"""


async def get(server, path, **headers):
    async with server.http.get(path, headers=headers) as response:
        return response.status, await response.json()


async def test_strangers_learn_only_that_it_lives(rolltap_serve, rolltap_tokenizer):
    keys = {"server": {"api_keys": ["secret"]}}
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer), config=keys)
    assert await get(server, "/health") == (200, {"status": "ok", "model": "test-model"})
    _, whole = await get(server, "/health", Authorization="Bearer secret")
    assert {"backends", "record", "sessions", "store"} <= whole.keys()


@pytest.mark.parametrize("key", ["schlüssel", "\udcff\udcfe", "k" * 5000])
async def test_a_key_of_any_letters_is_a_wrong_key(rolltap_serve, rolltap_tokenizer, key):
    keys = {"server": {"api_keys": ["secret"]}}
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer), config=keys)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    head = b"GET /sessions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nx-api-key: %b\r\n\r\n"
    writer.write(head % key.encode("utf-8", "surrogateescape"))
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 401")


async def test_it_is_not_ready_without_a_healthy_backend(rolltap_serve):
    down = ScriptedChatBackend([[UpstreamError("gone", status=503)]])
    server = await rolltap_serve(down)
    assert await get(server, "/ready") == (200, {"status": "ready"})
    assert (await server.post("/v1/chat/completions", CHAT))[0] == 503
    assert await get(server, "/ready") == (
        503,
        {"status": "not ready", "reason": "no healthy backend: test-model"},
    )


async def test_calls_in_flight_are_finished_and_late_ones_told(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "slow.py").write_text(SLOW)
    async with served(CONFIG, tmp_path) as server:

        async def ask(words):
            body = {"messages": [{"role": "user", "content": str(words)}], "stream": True}
            async with server.http.post("/v1/chat/completions", json=body) as response:
                return await response.text()

        short, long = asyncio.ensure_future(ask(10)), asyncio.ensure_future(ask(1000))
        await asyncio.sleep(0.3)
        began = time.monotonic()
        code = await server.ended(signal.SIGTERM)
        assert code == 0
        assert time.monotonic() - began < 10
        assert (await short).rstrip().endswith("data: [DONE]")
        assert "shutting_down" not in await short
        assert "the server is shutting down" in await long
