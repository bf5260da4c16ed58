"""`rolltap serve` as a process of its own, the processes below it, and what must hold when one of them is killed."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

ROLLTAP = str(Path(sys.executable).with_name("rolltap"))
QUESTION = [{"role": "user", "content": "Tell me a long story."}]


class Served:
    """A rolltap that serves a config. `engine_pids` are the processes of the engine that it launched."""

    def __init__(self, process: subprocess.Popen[str], url: str, http: aiohttp.ClientSession) -> None:
        self.process = process
        self.url = url
        self.http = http

    def engine_pids(self) -> list[int]:
        """The engine's processes, workers included, without the guard between it and rolltap."""
        guards = _children(self.process.pid)
        return [pid for guard in guards for child in _children(guard) for pid in (child, *_below(child))]

    async def nodes(self, session: str) -> list[dict[str, Any]]:
        async with self.http.get(f"/{session}/nodes") as response:
            return list((await response.json())["nodes"])

    async def ended(self, number: signal.Signals) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.process.send_signal(number)
        return await asyncio.to_thread(self.process.wait, 60)


@asynccontextmanager
async def served(config: str, folder: Path, *, patience_s: float = 60) -> AsyncIterator[Served]:
    """Serve a config until the context ends."""
    (folder / "rolltap.toml").write_text(config)
    with (folder / "stderr").open("w") as stderr:
        process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once, and outlives no test
            [ROLLTAP, "serve", "--config", "rolltap.toml", "--port", "0"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), patience_s)
        found = re.search(r"http://\S+", line)
        assert found, (folder / "stderr").read_text()
        async with aiohttp.ClientSession(found[0]) as http:
            yield Served(process, found[0], http)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _children(pid: int) -> list[int]:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _below(pid: int) -> list[int]:
    return [each for child in _children(pid) for each in (child, *_below(child))]


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until(condition: Callable[[], bool], *, patience_s: float = 60) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110 - of processes, which tell nobody
            await asyncio.sleep(0.05)


async def until_gone(pids: list[int]) -> None:
    """Wait until none of the processes runs any more."""
    assert pids
    await until(lambda: not any(alive(pid) for pid in pids))


async def engine_dies_mid_generation(server: Served, victim: int, *, stream: bool) -> str:
    """Kill a process of the engine while it generates.

    The request fails with the error that is returned, the record stays as it was, and the next request, sent at once,
    waits for the new engine and extends the node from before.
    """
    async with server.http.post("/sessions/create", json={}) as response:
        session = (await response.json())["uuid"]
    client = openai.AsyncOpenAI(
        base_url=f"{server.url}/{session}/v1", api_key="unused", max_retries=0, timeout=600
    )
    engine = server.engine_pids()
    asked: dict[str, Any] = {"model": "launched", "max_tokens": 5, "extra_body": {"ignore_eos": True}}
    async with client:
        first = await client.chat.completions.create(messages=QUESTION, **asked)
        history = [*QUESTION, {"role": "assistant", "content": first.choices[0].message.content}, *QUESTION]
        before = await server.nodes(session)
        long = {**asked, "max_tokens": 1000}
        if stream:
            chunks = await client.chat.completions.create(messages=history, stream=True, **long)
            await anext(aiter(chunks))
            os.kill(victim, signal.SIGKILL)
            with pytest.raises(openai.APIError) as caught:
                async for _ in chunks:
                    pass
        else:
            call = asyncio.ensure_future(client.chat.completions.create(messages=history, **long))
            await asyncio.sleep(0.5)
            assert not call.done()
            os.kill(victim, signal.SIGKILL)
            with pytest.raises(openai.InternalServerError) as caught:
                await call
        assert await server.nodes(session) == before
        again = await client.chat.completions.create(messages=history, **asked)
        assert again.choices[0].message.content
        (node,) = await server.nodes(session)
    assert node["tokens"][: len(before[0]["tokens"])] == before[0]["tokens"]
    assert node["metadata"]["trainable"]
    assert not set(server.engine_pids()) & set(engine)
    await until_gone(engine)
    return caught.value.message
