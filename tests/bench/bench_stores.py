"""What keeping an entry costs with each store: `python tests/bench/bench_stores.py`.

An entry holds the ids and logprobs of 700 tokens, some 8 kB. "At once" is how many appends are under way. Processor time is
this process' own, all threads; for Redis what the server uses comes on top, and its table's second figure says it.
Last: what a plain request of a session costs the serving process, 16 at once in as many sessions, with each store, and how many times the
same round's figure with `memory` that is.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

import aiohttp
import bench_gateway
import psutil
from rich.console import Console
from rich.table import Table

from redis_servers import RedisServers
from rolltap import Store
from rolltap.testing import store_entry
from rolltap_plugins.stores import memory, redis, sqlite

APPENDS, AT_ONCE, SIZE = 6400, (1, 16, 128), 8000
REQUESTS, ROUNDS = 1000, 5


async def append_all(store: Store, at_once: int) -> tuple[float, float]:
    """Wall and processor seconds of an append."""
    await store.start()
    for number in range(at_once):
        await store.append(f"s{number}", store_entry(f"s{number}"))
    entry = store_entry("s", 1, size=SIZE)

    async def fill(session: str) -> None:
        for _ in range(APPENDS // at_once):
            await store.append(session, entry)

    wall, processor = time.perf_counter(), time.process_time()
    await asyncio.gather(*(fill(f"s{number}") for number in range(at_once)))
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    await store.close()
    return wall / APPENDS, processor / APPENDS


async def read_all(store: Store) -> float:
    """Seconds to read a session of 60 entries."""
    await store.start()
    await store.append("long", store_entry("long"))
    for number in range(1, 60):
        await store.append("long", store_entry("long", number, size=SIZE))
    started = time.perf_counter()
    for _ in range(50):
        assert len(await store.read("long")) == 60
    seconds = (time.perf_counter() - started) / 50
    await store.close()
    return seconds


def appends(folder: Path, servers: RedisServers) -> Table:
    """Each store by itself."""
    table = Table("store", *(f"appends/s,\n{each} at once" for each in AT_ONCE))
    for heading in (
        *(f"CPU µs,\n{each} at once" for each in AT_ONCE),
        "Redis' own\nCPU µs",
        "read 60\nentries, ms",
    ):
        table.add_column(heading, justify="right")
    server = psutil.Process(servers.nodes[0].process.pid)
    prefixes = iter(range(100))
    stores: dict[str, Callable[[], Store]] = {
        "memory": memory.MemoryStore,
        "sqlite, process": lambda: sqlite.SqliteStore(folder / f"{next(prefixes)}.db"),
        "sqlite, power": lambda: sqlite.SqliteStore(folder / f"{next(prefixes)}.db", "power"),
        "redis": lambda: redis.RedisStore(redis.Options(url=servers.url, prefix=f"b{next(prefixes)}")),
    }
    for name, make in stores.items():
        before = sum(server.cpu_times()[:2])
        figures = [asyncio.run(append_all(make(), each)) for each in AT_ONCE]
        used = (sum(server.cpu_times()[:2]) - before) / (APPENDS * len(AT_ONCE))
        table.add_row(
            name,
            *(f"{1 / wall:,.0f}" for wall, _ in figures),
            *(f"{processor * 1e6:.0f}" for _, processor in figures),
            f"{used * 1e6:.0f}" if name == "redis" else "",
            f"{asyncio.run(read_all(make())) * 1e3:.1f}",
        )
    return table


async def new_sessions(url: str) -> list[str]:
    """As many as are asked at once: rollouts have a session each."""
    return [await bench_gateway.new_session(url) for _ in range(16)]


async def load_all(url: str, paths: list[str]) -> None:
    """`REQUESTS` in all, one after the other in each session."""

    async def work(client: aiohttp.ClientSession, path: str) -> None:
        for number in range(REQUESTS // len(paths)):
            body = bench_gateway._body(number, stream=False)
            headers = {"content-type": "application/json"}
            async with client.post(url + path, data=body, headers=headers) as response:
                assert response.status == 200, await response.text()
                await response.read()

    async with aiohttp.ClientSession() as client:
        await asyncio.gather(*(work(client, path) for path in paths))


def requests(folder: Path, servers: RedisServers, stack: ExitStack) -> Table:
    """Whole servers, asked in turns."""
    stores = {
        "memory": 'kind = "memory"',
        "sqlite, process": f'kind = "sqlite"\npath = "{folder / "served.db"}"',
        "sqlite, power": f'kind = "sqlite"\npath = "{folder / "power.db"}"\ndurability = "power"',
        "redis": f'kind = "redis"\nurl = "{servers.url}"\nprefix = "served"',
    }
    upstream, _ = stack.enter_context(bench_gateway.process(bench_gateway.__file__, "--serve", "upstream"))
    config = Path(bench_gateway.config(folder, "openai", f"{upstream}/v1"))
    text = config.read_text(encoding="utf-8")
    asked: dict[str, tuple[str, int, list[str]]] = {}
    for name, lines in stores.items():
        config.write_text(text.replace('kind = "memory"', lines), encoding="utf-8")
        command = ("-c", "from rolltap.cli import main; main()", "serve", "--config", str(config))
        url, server = stack.enter_context(bench_gateway.process(*command))
        asked[name] = url, server, asyncio.run(new_sessions(url))
    figures: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(ROUNDS):
        for name, (url, server, paths) in asked.items():
            before = bench_gateway.cpu_s(server)
            asyncio.run(load_all(url, paths))
            figures[name].append((bench_gateway.cpu_s(server) - before) / REQUESTS)
    table = Table("store", "CPU µs a request", "times memory's")
    for name, rounds in figures.items():
        ratio = median(mine / base for mine, base in zip(rounds, figures["memory"], strict=True))
        table.add_row(name, f"{median(rounds) * 1e6:.0f}", f"{ratio:.2f}")
    return table


def main() -> None:
    """Measure and print."""
    console = Console(width=120)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = stack.enter_context(RedisServers(folder / "redis"))
        console.print(appends(folder, servers))
        console.print(requests(folder, servers, stack))


if __name__ == "__main__":
    main()
