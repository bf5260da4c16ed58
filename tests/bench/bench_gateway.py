"""What the chat backends cost, in CPU of the serving process: `python tests/bench/bench_gateway.py`.

Side by side in one run: a bare aiohttp pass-through and the backend "openai" behind rolltap; a bare aiohttp handler that
calls any-llm and the backend "anyllm" behind rolltap. Each server is a process of its own, before one scripted upstream
that sends a chunk every few milliseconds to each stream, as a model does. Prints microseconds a request and a streamed
chunk, and the ratios. Linux only.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import orjson
from aiohttp import web

CHUNKS = 64
PACE_S = 0.004
CONCURRENCY = 16

_HEAD = {"id": "chatcmpl-1", "created": 1, "model": "big"}
_TEXT = "A few words of an answer, as long as answers to small questions are. " * 6
_PLAIN = orjson.dumps(
    {
        **_HEAD,
        "object": "chat.completion",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": _TEXT}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 300, "completion_tokens": 90, "total_tokens": 390},
    }
)


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return (
        b"data: " + orjson.dumps({**_HEAD, "object": "chat.completion.chunk", "choices": [choice]}) + b"\n\n"
    )


def _body(number: int, *, stream: bool) -> bytes:
    """A request of 1.2 KB; in a session, equal ones at one time would be one."""
    messages = [
        {"role": "system", "content": "You are a careful assistant. " * 20},
        {"role": "user", "content": "What is the weather in Paris? " * 15},
    ]
    return orjson.dumps(
        {
            "model": "big",
            "messages": messages,
            "seed": number,
            "temperature": 0.7,
            "max_tokens": 256,
            **({"stream": True} if stream else {}),
        }
    )


async def upstream(request: web.Request) -> web.StreamResponse:
    """The model's server."""
    if not orjson.loads(await request.read()).get("stream"):
        return web.Response(body=_PLAIN, content_type="application/json")
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await response.write(_chunk({"role": "assistant", "content": ""}))
    for _ in range(CHUNKS):
        await response.write(_chunk({"content": " word"}))
        await asyncio.sleep(PACE_S)
    await response.write(_chunk({}, "stop") + b"data: [DONE]\n\n")
    return response


def pass_through(url: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Read the body, send it on, send back what comes."""
    sessions: list[aiohttp.ClientSession] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        if not sessions:
            sessions.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        body = orjson.loads(await request.read())
        body["model"] = "big"
        headers = {"content-type": "application/json"}
        async with sessions[0].post(
            f"{url}/chat/completions", data=orjson.dumps(body), headers=headers
        ) as came:
            if not body.get("stream"):
                return web.Response(body=await came.read(), content_type="application/json")
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            async for data in came.content.iter_any():
                await response.write(data)
            return response

    return handle


def calling_any_llm(url: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Read the body, call any-llm, send back what it gives."""
    from any_llm import AnyLLM  # noqa: PLC0415 - three seconds, of one process only

    llm = AnyLLM.create("openai", api_key="k", api_base=url, unified_exceptions=True, max_retries=0)

    async def handle(request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        reply: Any = await llm.acompletion(**body)
        if not body.get("stream"):
            return web.Response(text=reply.model_dump_json(), content_type="application/json")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        async for chunk in reply:
            await response.write(b"data: " + chunk.model_dump_json(exclude_none=True).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    return handle


def serve(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> None:
    """Serve one handler on a free port, and print the address."""

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", handler)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(f"serving on http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


@contextmanager
def process(*arguments: str) -> Iterator[tuple[str, int]]:
    """A server in a process of its own: its address and the process."""
    environ = {**os.environ, "BENCH_KEY": "k"}
    with subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=environ
    ) as started:
        try:
            assert started.stdout is not None
            line = started.stdout.readline()
            if "http://" not in line:
                raise RuntimeError(f"{arguments} did not start: {line!r}")
            yield f"http://{line.strip().rpartition('http://')[2]}", started.pid
        finally:
            started.terminate()


def cpu_s(server: int) -> float:
    """CPU seconds that the process has used."""
    fields = Path(f"/proc/{server}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(url: str, path: str, requests: int, *, stream: bool) -> None:
    """Send this many requests, `CONCURRENCY` at once; check that each is answered whole."""
    left = iter(range(requests))
    headers = {"content-type": "application/json"}

    async def work(session: aiohttp.ClientSession) -> None:
        for number in left:
            body = _body(number, stream=stream)
            async with session.post(url + path, data=body, headers=headers) as response:
                data = await response.read()
            if response.status != 200 or (stream and data.count(b" word") != CHUNKS):
                raise RuntimeError(f"{url}: {response.status} {data[:300]!r}")

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(work(session) for _ in range(CONCURRENCY)))


async def new_session(url: str) -> str:
    """A session's path."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + "/sessions/create", json={}) as response,
    ):
        return f"/{(await response.json())['uuid']}/v1/chat/completions"


def measure(url: str, server: int, path: str, requests: int, streams: int) -> tuple[float, float]:
    """Microseconds of CPU for a plain request and for a streamed chunk (a stream's request included)."""
    took = []
    for number, stream in ((requests, False), (streams, True)):
        asyncio.run(load(url, path, max(CONCURRENCY, number // 10), stream=stream))
        before = cpu_s(server)
        asyncio.run(load(url, path, number, stream=stream))
        took.append((cpu_s(server) - before) / number * 1e6)
    return took[0], took[1] / CHUNKS


def config(folder: Path, kind: str, api_base: str) -> str:
    """A config file for rolltap with one backend of this kind."""
    table = {"kind": kind, "api_base": api_base, "api_key_env": "BENCH_KEY"}
    lines = ["[server]", 'host = "127.0.0.1"', "port = 0", "[store]", 'kind = "memory"', "[[models]]"]
    lines += ['name = "big"', "[[models.backends]]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    path = folder / f"{kind}.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--requests", type=int, default=1500)
    arguments.add_argument("--streams", type=int, default=64)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--serve", nargs="*", help="used for the servers' own processes")
    given = arguments.parse_args()
    if given.serve:
        kind, *url = given.serve
        serve(
            upstream if kind == "upstream" else {"pass": pass_through, "any-llm": calling_any_llm}[kind](*url)
        )
        return
    with ExitStack() as stack:
        figures: dict[str, list[tuple[float, float]]] = {}
        paths = started(stack)
        for _ in range(given.rounds):
            for label, (url, server, path) in paths.items():
                few = 2 if "any" in label else 1
                took = measure(url, server, path, given.requests // few, given.streams // few)
                figures.setdefault(label, []).append(took)
    report(figures)


def started(stack: ExitStack) -> dict[str, tuple[str, int, str]]:
    """Every server, running: what to call it, its address, its process and the path to ask."""
    me = str(Path(__file__))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    api_base = stack.enter_context(process(me, "--serve", "upstream"))[0] + "/v1"
    rolltap = ("-c", "from rolltap.cli import main; main()", "serve", "--config")
    servers = {
        "bare pass-through": (me, "--serve", "pass", api_base),
        "rolltap, openai": (*rolltap, config(folder, "openai", api_base)),
        "bare any-llm": (me, "--serve", "any-llm", api_base),
        "rolltap, anyllm": (*rolltap, config(folder, "anyllm", api_base)),
    }
    paths = {}
    for name, command in servers.items():
        url, server = stack.enter_context(process(*command))
        paths[name] = (url, server, "/v1/chat/completions")
        if name.startswith("rolltap"):
            paths[f"{name}, in a session"] = (url, server, asyncio.run(new_session(url)))
    return paths


def report(figures: dict[str, list[tuple[float, float]]]) -> None:
    """Print the median of all rounds, and the median of how many times the same round's bare figure each is."""
    bare: list[tuple[float, float]] = []
    for label, rounds in figures.items():
        if label.startswith("bare"):
            bare = rounds
        parts = []
        for at, what in enumerate(("request", "chunk")):
            ratio = median(mine[at] / base[at] for mine, base in zip(rounds, bare, strict=True))
            parts.append(f"{median(each[at] for each in rounds):6.1f} µs a {what} ({ratio:.2f} x bare)")
        print(f"{label:30} {', '.join(parts)}")


if __name__ == "__main__":
    main()
