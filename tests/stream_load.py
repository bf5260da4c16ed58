"""Many open streams through a real server in a process of its own, and what they cost it in memory.

The upstream is a third process, so that the server's memory is the server's alone.
"""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web

from rolltap.testing import tiny_tokenizer

FLOOD = "flood"
"""The model that answers as fast as it is read, without end; the other one says a word now and then."""

EVERY_S = 1.0
_CHUNK = b'data: {"choices": [{"index": 0, "delta": {"content": "%s"}, "finish_reason": null}]}\n\n'

_CONFIG = """
[store]
kind = "memory"
[server]
max_in_flight = 10000
[[models]]
name = "held"
backends = [{{ kind = "openai", url = "{upstream}" }}]
[[models]]
name = "flood"
backends = [{{ kind = "openai", url = "{upstream}" }}]
[[models]]
name = "tokens"
tokenizer = "{tokenizer}"
backends = [{{ kind = "held-tokens" }}]
"""

_PLUGIN = """
import asyncio
import rolltap

class Held(rolltap.TokenBackend):
    async def generate(self, request):
        while True:
            yield rolltap.TokenDelta(token_ids=[40], logprobs=[-0.1])
            await asyncio.sleep(1)

@rolltap.hookimpl
def create_backend(kind):
    return Held() if kind == "held-tokens" else None
"""


class Server(NamedTuple):
    """The server under load."""

    url: str
    pid: int
    http: aiohttp.ClientSession

    def memory(self) -> int:
        """Its resident memory, in bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async def session(self, model: str) -> str:
        """A new session's id."""
        async with self.http.post(f"{self.url}/sessions/create", json={"model": model}) as response:
            return str((await response.json())["uuid"])


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    """`rolltap serve` in front of an upstream, each in a process of its own."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream, _ = await stack.enter_async_context(_process(sys.executable, __file__))
        (folder / "plugins").mkdir()
        (folder / "plugins" / "held.py").write_text(_PLUGIN)
        tokenizer = tiny_tokenizer(folder / "tokenizer")
        (folder / "rolltap.toml").write_text(_CONFIG.format(upstream=upstream, tokenizer=tokenizer))
        rolltap = Path(sys.executable).with_name("rolltap")
        arguments = ["serve", "--config", folder / "rolltap.toml", "--plugins-dir", folder / "plugins"]
        url, pid = await stack.enter_async_context(_process(rolltap, *arguments, "--port", "0"))
        http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        )
        yield Server(url, pid, await stack.enter_async_context(http))


@asynccontextmanager
async def _process(*command: Any) -> AsyncIterator[tuple[str, int]]:
    """A process whose first line of output ends with the address that it serves at."""
    process = await asyncio.create_subprocess_exec(*map(str, command), stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            line = await process.stdout.readline()
        yield line.split()[-1].decode(), process.pid
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()


async def bytes_a_stream(server: Server, streams: int, *, model: str, in_session: bool) -> float:
    """What one open stream costs the server, once each has sent a few words."""
    await _held(server, streams // 10, model, in_session)  # what is needed once only
    before = server.memory()
    return (await _held(server, streams, model, in_session) - before) / streams


async def _held(server: Server, streams: int, model: str, in_session: bool, words: int = 3) -> int:
    """Open this many streams; the server's memory when each has sent some words and all are open."""
    spoken = asyncio.Semaphore(0)

    async def hold(number: int) -> None:
        prefix = f"/{await server.session(model)}" if in_session else ""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": f"Question {number}"}],
            "stream": True,
        }
        async with server.http.post(f"{server.url}{prefix}/v1/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            heard = 0
            async for line in response.content:
                heard += b'"content"' in line
                if heard == words:
                    spoken.release()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(hold(number)) for number in range(streams)]
        async with asyncio.timeout(60):
            for _ in tasks:
                await spoken.acquire()
        memory = server.memory()
        for task in tasks:
            task.cancel()
    await asyncio.sleep(0.5)
    return memory


async def growth_by_slow_readers(
    server: Server, readers: int, *, in_session: bool, seconds: float
) -> list[int]:
    """The server's memory, in bytes, while clients don't read what comes without end; measured every second."""
    body = {"model": FLOOD, "messages": [{"role": "user", "content": "a"}], "stream": True}
    async with AsyncExitStack() as stack:
        for _ in range(readers):
            prefix = f"/{await server.session(FLOOD)}" if in_session else ""
            post = server.http.post(f"{server.url}{prefix}/v1/chat/completions", json=body)
            response = await stack.enter_async_context(post)
            await response.content.read(1)
        measured = []
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            measured.append(server.memory())
            await asyncio.sleep(1)
    return measured


async def _answer(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    flood = body["model"] == FLOOD
    chunk = _CHUNK % (b"x" * 1000 if flood else b"word ")
    while True:
        await response.write(chunk)
        if not flood:
            await asyncio.sleep(EVERY_S)


async def _upstream() -> None:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", _answer)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)  # noqa: T201 - read by `_process`
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_upstream())
