"""What a proxy costs: a floor, rolltap and LiteLLM's proxy before one scripted engine, side by side in one run.

`python tests/bench/bench_proxies.py [--short] [--rounds N] [--litellm PYTHON_ENV] [--json FILE]`

The servers take turns in every round; the figures are medians of the rounds. CPU is that of the server's own process,
which does not depend on what else the machine does as times do. LiteLLM is measured where its environment is there
(`.ci/bench-env` makes it). Linux only.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import aiohttp
import orjson

from rolltap.testing import tiny_tokenizer

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TURNS = 100


class Scene(NamedTuple):
    """A kind of request: how many of them, how many at once, and what is in the body."""

    name: str
    requests: int
    at_once: int
    tokens: int = 16
    stream: bool = False
    n: int = 1
    tools: int = 0
    turns: int = 1
    """How many requests one conversation is; each goes on from the one before."""


SCENES = (
    Scene("short chat", 400, 16),
    Scene("short chat, 256 at once", 512, 256),
    Scene("64 tokens", 200, 16, 64),
    Scene("64 tokens, streamed", 100, 16, 64, stream=True),
    Scene("1,024 tokens", 60, 16, 1024),
    Scene("1,024 tokens, streamed", 32, 16, 1024, stream=True),
    Scene("n = 8", 80, 16, n=8),
    Scene("78 KB with 24 tools", 80, 16, tools=24),
    Scene(f"a turn of a {TURNS}-turn conversation", 2 * TURNS, 2, turns=TURNS),
)
SHORT_SCENES = (SCENES[0], SCENES[4], SCENES[5])
SLOW = {"LiteLLM": 4}
"""By how much fewer requests such a server is sent."""


class Server(NamedTuple):
    """A running server: where it is, its process, and whether its requests belong to sessions."""

    url: str
    process: int
    sessions: bool


class Figures(NamedTuple):
    """What a scene cost at a server."""

    requests_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """CPU a request."""
    cpu_token_us: float
    first_ms: float
    """Until the first token of a stream, else until the reply; the median."""
    memory_mb: float


def cpu_s(process: int) -> float:
    """CPU seconds that the process has used, threads that have ended included: its own clock, as Linux numbers it."""
    return time.clock_gettime((~process << 3) | 2)


def memory_mb(process: int) -> float:
    """Resident memory."""
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def tool(number: int) -> dict[str, Any]:
    """A tool of about 3 KB, as coding agents have them."""
    properties = {
        f"argument_{at}": {"type": "string", "description": "What to do with it, in a few words. " * 6}
        for at in range(8)
    }
    function = {
        "name": f"tool_{number}",
        "description": "Does something useful with files and tells what it has done. " * 16,
        "parameters": {"type": "object", "properties": properties, "required": ["argument_0"]},
    }
    return {"type": "function", "function": function}


async def new_path(http: aiohttp.ClientSession, server: Server) -> str:
    """Where a conversation is sent: with rolltap to a session of its own."""
    if not server.sessions:
        return "/v1/chat/completions"
    async with http.post(f"{server.url}/sessions/create", json={}) as response:
        return f"/{(await response.json())['uuid']}/v1/chat/completions"


async def measure(server: Server, scene: Scene, requests: int) -> Figures:
    """Send a scene's requests and see what they cost."""
    took: list[float] = []
    firsts: list[float] = []
    tools = {"tools": [tool(number) for number in range(scene.tools)]} if scene.tools else {}

    async def ask(http: aiohttp.ClientSession, path: str, messages: list[Any]) -> None:
        body = {"model": "big", "messages": messages, "max_tokens": scene.tokens, **tools}
        body |= {"stream": True} if scene.stream else {}
        body |= {"n": scene.n} if scene.n > 1 else {}
        data = orjson.dumps(body)
        began = time.perf_counter()
        headers = {"content-type": "application/json"}
        async with http.post(server.url + path, data=data, headers=headers) as response:
            if scene.stream:
                reply, first = b"", 0.0
                async for part in response.content.iter_any():
                    if b"word" in part or b"the" in part or b"answer" in part:
                        first = first or time.perf_counter() - began
                    reply += part
                firsts.append(first)
            else:
                reply = await response.read()
            took.append(time.perf_counter() - began)
        if response.status != 200 or not reply or b'"error"' in reply:
            raise RuntimeError(f"{server.url}{path}: {response.status} {reply[:300]!r}")
        if scene.turns > 1:
            messages.append(orjson.loads(reply)["choices"][0]["message"])

    async def work(http: aiohttp.ClientSession) -> None:
        for number, path in conversations:
            messages: list[Any] = []
            for turn in range(scene.turns):
                question = f"Question {number}, {turn}: what is it? " * (8 if scene.turns > 1 else 1)
                messages.append({"role": "user", "content": question})
                await ask(http, path, messages)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        conversations = iter([(at, await new_path(http, server)) for at in range(requests // scene.turns)])
        before, began = cpu_s(server.process), time.perf_counter()
        await asyncio.gather(*(work(http) for _ in range(scene.at_once)))
    wall, cpu = time.perf_counter() - began, cpu_s(server.process) - before
    return Figures(
        requests_s=len(took) / wall,
        p50_ms=median(took) * 1e3,
        p99_ms=quantiles(took, n=100)[98] * 1e3,
        cpu_us=cpu / len(took) * 1e6,
        cpu_token_us=cpu / len(took) / scene.tokens / scene.n * 1e6,
        first_ms=median(firsts or took) * 1e3,
        memory_mb=memory_mb(server.process),
    )


@contextmanager
def process(*command: str, url: str = "", **environ: str) -> Iterator[tuple[str, int]]:
    """A server in a process of its own: its address, printed or given, and the process."""
    log = subprocess.DEVNULL if "litellm" in command[0] else None
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL if url else subprocess.PIPE, stderr=log, text=True,
        env={**os.environ, **environ},
    ) as started:  # fmt: skip
        try:
            if not url:
                assert started.stdout is not None
                line = started.stdout.readline()
                if "http://" not in line:
                    raise RuntimeError(f"{command} did not start: {line!r}")
                url = f"http://{line.strip().rpartition('http://')[2]}"
            yield url, started.pid
        finally:
            started.terminate()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def rolltap_config(folder: Path, store: str, engine: str, tokenizer: Path) -> str:
    """A config file for rolltap before the engine's token endpoint."""
    stored = f'kind = "{store}"' + (f'\npath = "{folder / "bench.db"}"' if store == "sqlite" else "")
    path = folder / f"{store}.toml"
    path.write_text(
        f'[server]\nport = 0\n[store]\n{stored}\n[[models]]\nname = "big"\ntokenizer = "{tokenizer}"\n'
        f'tool_parser = "hermes"\n[[models.backends]]\nkind = "vllm"\nurl = "{engine}"\n',
        encoding="utf-8",
    )
    return str(path)


def started(stack: ExitStack, litellm: Path | None) -> dict[str, Server]:
    """Every server, running, by what it is called."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    tokenizer = tiny_tokenizer(folder / "tokenizer")
    ids = json.dumps(_word_ids(tokenizer))
    floor = str(HERE / "floor.py")
    engine, _ = stack.enter_context(process(sys.executable, floor, "engine", ids))
    servers = {"floor": Server(*stack.enter_context(process(sys.executable, floor, "floor", engine)), False)}
    command = (sys.executable, "-c", "from rolltap.cli import main; main()", "serve", "--config")
    for store in ("memory", "sqlite"):
        config = rolltap_config(folder, store, engine, tokenizer)
        servers[f"rolltap, {store}"] = Server(*stack.enter_context(process(*command, config)), True)
    if importlib.util.find_spec("uvloop") is not None:
        found = stack.enter_context(
            process(*command, str(folder / "memory.toml"), ROLLTAP_SERVER__LOOP="uvloop")
        )
        servers["rolltap, memory, uvloop"] = Server(*found, sessions=True)
    if litellm is not None:
        servers["LiteLLM"] = _litellm(stack, litellm, folder, engine)
    return servers


def _word_ids(tokenizer: Path) -> list[int]:
    from transformers import AutoTokenizer  # noqa: PLC0415 - seconds, and not for --help

    ids: list[int] = AutoTokenizer.from_pretrained(str(tokenizer)).encode(
        " the answer is it", add_special_tokens=False
    )
    return ids


def _litellm(stack: ExitStack, environment: Path, folder: Path, engine: str) -> Server:
    config, port = folder / "litellm.json", free_port()
    parameters = {"model": "openai/big", "api_base": f"{engine}/v1", "api_key": "k"}
    models = [{"model_name": "big", "litellm_params": parameters}]
    config.write_text(json.dumps({"model_list": models}), encoding="utf-8")
    url = f"http://127.0.0.1:{port}"
    command = (str(environment / "bin" / "litellm"), "--config", str(config), "--host", "127.0.0.1")
    environ = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    found = stack.enter_context(process(*command, "--port", str(port), url=url, **environ))
    asyncio.run(_wait_until_up(f"{url}/health/liveliness"))
    return Server(*found, False)


async def _wait_until_up(url: str) -> None:
    async with aiohttp.ClientSession() as http:
        for _ in range(240):
            try:
                async with http.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)
    raise RuntimeError(f"{url} did not come up within two minutes")


def compared(rounds: list[Figures], floor: list[Figures]) -> dict[str, float]:
    """The medians of all rounds, and how many times the CPU of the same round's floor it was."""
    found = {name: median(getattr(each, name) for each in rounds) for name in Figures._fields}
    found["cpu_ratio"] = median(mine.cpu_us / least.cpu_us for mine, least in zip(rounds, floor, strict=True))
    return found


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """The results as a Markdown table."""
    lines = [
        "| | | requests/s | p50 ms | p99 ms | CPU µs a request | of the floor | CPU µs a token | first ms | memory MB |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for scene, servers in results.items():
        for name, figures in servers.items():
            shown = [
                f"{figures['requests_s']:,.0f}",
                f"{figures['p50_ms']:,.1f}",
                f"{figures['p99_ms']:,.1f}",
                f"{figures['cpu_us']:,.0f}",
                f"{figures['cpu_ratio']:.2f}",
                f"{figures['cpu_token_us']:,.1f}",
                f"{figures['first_ms']:,.1f}",
                f"{figures['memory_mb']:,.0f}",
            ]
            lines.append(f"| {scene if name == 'floor' else ''} | {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def failures(results: dict[str, dict[str, dict[str, float]]], recorded: Path) -> list[str]:
    """The CPU ratios that are more than 30 % worse than the recorded ones, in words."""
    wrong = []
    for scene, ratio in json.loads(recorded.read_text(encoding="utf-8")).items():
        now = results[scene]["rolltap, memory"]["cpu_ratio"]
        if now > ratio * 1.3:
            wrong.append(f"{scene}: {now:.2f} times the floor's CPU; recorded are {ratio:.2f}")
    return wrong


def main() -> None:
    """Measure, print, and fail where the short form finds a ratio that has become worse."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--short", action="store_true", help="three scenes, compared with recorded.json")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--litellm", type=Path, default=ROOT / ".venv-bench", help="its environment")
    arguments.add_argument("--json", type=Path, help="also write the figures to this file")
    given = arguments.parse_args()
    litellm = given.litellm if given.litellm.exists() and not given.short else None
    found: dict[str, dict[str, list[Figures]]] = {}
    with ExitStack() as stack:
        servers = started(stack, litellm)
        for at in range(-1, given.rounds):  # the first round warms up
            for scene in SHORT_SCENES if given.short else SCENES:
                for name, server in servers.items():
                    requests = max(scene.turns, scene.at_once, scene.requests // SLOW.get(name, 1))
                    figures = asyncio.run(measure(server, scene, requests))
                    if at >= 0:
                        found.setdefault(scene.name, {}).setdefault(name, []).append(figures)
    results = {
        scene: {name: compared(rounds, each["floor"]) for name, rounds in each.items()}
        for scene, each in found.items()
    }
    print(table(results))
    if given.json:
        given.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    if given.short and (wrong := failures(results, HERE / "recorded.json")):
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
