"""Times what asking the hooks costs a request: `python tests/bench/bench_hooks.py`.

All built-in plugins are loaded. A request of a session with tools and thinking asks `select_backend`, `tool_parser` and
`reasoning_parser`, and tells `record_node`; a failing one asks `classify_error`. Prints microseconds of processor time,
the fastest of several runs, for each hook and for a request: as it is, traced, and with ten recorders of others' besides.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import rolltap
from rolltap.config import PluginsConfig
from rolltap.plugins import Plugins
from rolltap.plugins.tracing import tracing
from rolltap.testing import ScriptedChatBackend

ROUNDS, RUNS = 2_000, 7
BACKENDS = [
    rolltap.BackendHandle(ScriptedChatBackend(), name=f"given-{number}", kind="given", model="m")
    for number in range(2)
]
TOOLS = [
    {"type": "function", "function": {"name": f"tool{number}", "parameters": {}}} for number in range(20)
]
SESSION = rolltap.SessionInfo(uuid="s", model_name="m", tool_parser="hermes")
QUESTIONS: dict[str, dict[str, Any]] = {
    "select_backend": {"request": rolltap.ChatRequest(), "session": SESSION, "backends": BACKENDS},
    "tool_parser": {"name": "hermes", "tools": TOOLS, "tokenizer": None},
    "reasoning_parser": {"name": "think", "tokenizer": None},
    "classify_error": {"error": TimeoutError("slow"), "backend": BACKENDS[0]},
}
NODE = {"session": SESSION, "node": SimpleNamespace()}


class Recorder:
    """One of others'."""

    @rolltap.hookimpl
    async def record_node(self, node: object) -> None:
        """Do nothing, in a coroutine."""


async def request(plugins: Plugins) -> None:
    """What one request asks."""
    for hook in ("select_backend", "tool_parser", "reasoning_parser"):
        if await plugins.ask(hook, **QUESTIONS[hook]) is None:
            raise RuntimeError(f"nobody answers {hook}")
    await plugins.notify("record_node", **NODE)


async def best(ask: Callable[[], Awaitable[Any]]) -> float:
    """Microseconds of the fastest run."""
    runs = []
    for _ in range(RUNS):
        began = time.process_time()
        for _ in range(ROUNDS):
            await ask()
        runs.append((time.process_time() - began) / ROUNDS * 1e6)
    return min(runs)


async def main() -> None:
    """Measure and print."""
    plugins = Plugins.load(PluginsConfig())
    for hook, arguments in QUESTIONS.items():
        asked = len(plugins.order(hook))
        print(f"{hook}: {await best(lambda: plugins.ask(hook, **arguments)):.1f} µs, {asked} plugins")  # noqa: B023
    print(f"a request: {await best(lambda: request(plugins)):.1f} µs (at most 60)")

    async def traced() -> None:
        with tracing():
            await request(plugins)

    print(f"a request that is traced: {await best(traced):.1f} µs")
    more = Plugins.load(PluginsConfig(), [Recorder() for _ in range(10)])
    print(f"a request, with ten recorders more: {await best(lambda: request(more)):.1f} µs")


if __name__ == "__main__":
    asyncio.run(main())
