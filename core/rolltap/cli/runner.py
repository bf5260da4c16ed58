"""Running the server in this process: listening, the ready line, and an end that finishes what is in flight."""

import asyncio
import contextlib
import errno
import gc
import importlib
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from aiohttp import web

from rolltap.cli.logs import JsonFormatter, SafeRecord, TextFormatter
from rolltap.cli.options import naming
from rolltap.config import Config
from rolltap.errors import ConfigError
from rolltap.server.app import create_app
from rolltap.server.keys import Keys
from rolltap.server.state import KEYS, PIPELINE

SHUTDOWN_TIMEOUT_S = 3.0
"""How long connections may take to close, once calls have ended within `drain_s`."""

_GC_THRESHOLDS = (50_000, 20, 100)
"""When Python looks for cycles among objects. Its own 700 young objects are there every few requests, and looking
took an eighth of all CPU; requests leave few cycles behind."""

_BACKLOG = 1024
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(config: Config, *, config_file: str | None = None) -> None:
    """Serve until SIGTERM or SIGINT; a second one ends the process at once. Messages name `config_file`.

    Raises `ConfigError` where the address can't be listened on, and whatever keeps the application from starting.
    """
    _log_to_stderr(config.server.log_format, access_log=config.server.access_log)
    with contextlib.ExitStack() as stack:
        # Bound first: that a port is taken should be said at once, not after a model was loaded.
        sockets = [stack.enter_context(each) for each in bind(config.server.host, config.server.port)]
        with naming(config_file):
            _check_guarded(config, sockets)
            new_loop = _loop_factory(config.server.loop)
            app = create_app(config)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_serve(app, config, sockets, config_file))


def _check_guarded(config: Config, sockets: list[socket.socket]) -> None:
    """Raise `ConfigError` where other machines could use the server without a key and the config doesn't allow it."""
    server = config.server
    if server.api_keys or server.api_keys_file or server.allow_public:
        return
    if all(ipaddress.ip_address(each.getsockname()[0]).is_loopback for each in sockets):
        return
    raise ConfigError(
        f"server.host = {server.host!r} lets other machines use the server, and it has no keys; set server.api_keys "
        "or server.api_keys_file, or server.allow_public = true where something else guards it"
    )


def _loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the event loop. Raises `ConfigError` where its package is not installed."""
    if name == "asyncio":
        return asyncio.new_event_loop
    try:
        uvloop = importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"server.loop = {name!r} needs the package {name}, which can't be imported ({error}); "
            'pip install "rolltap[uvloop]", or set it to "asyncio"'
        ) from error
    found: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return found


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets on every address of the host that this machine has, all on one port. They don't listen yet.

    Raises `ConfigError` that names the address and says why it can't be used.
    """
    missing = None
    with contextlib.ExitStack() as stack:
        bound: list[socket.socket] = []
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, _, _, _, address in dict.fromkeys(found):
                try:
                    free = stack.enter_context(_bound(family, (address[0], port, *address[2:])))
                except OSError as error:
                    # Such as "localhost", which has an IPv6 address also where the machine has no IPv6.
                    if error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                        raise
                    missing = error
                else:
                    port = free.getsockname()[1]
                    bound.append(free)
            if missing and not bound:
                raise missing
        except OSError as error:
            raise ConfigError(_why_not(host, port, error)) from error
        stack.pop_all()
    return bound


def _bound(family: int, address: tuple[str | int, ...]) -> socket.socket:
    free = socket.socket(family, socket.SOCK_STREAM)
    try:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            free.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        free.bind(address)
    except OSError:
        free.close()
        raise
    return free


def _why_not(host: str, port: int, error: OSError) -> str:
    where = f"cannot listen on {url_host(host)}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where}: the port is in use; choose another with --port (0: any free one) or server.port"
    if error.errno == errno.EACCES:
        return f"{where}: not permitted; ports below 1024 are the system's, choose another with --port"
    return f"{where}: {error.strerror or error}; set --host or server.host to an address of this machine"


async def _serve(
    app: web.Application, config: Config, sockets: list[socket.socket], config_file: str | None
) -> None:
    stopping = asyncio.Event()
    runner = web.AppRunner(
        app,
        # Off by default in aiohttp: a client that leaves must stop the engine's work.
        handler_cancellation=True,
        keepalive_timeout=config.server.idle_timeout_s,
        shutdown_timeout=SHUTDOWN_TIMEOUT_S,
        access_log=logging.getLogger("aiohttp.access") if config.server.access_log else None,
    )
    with _signals(stopping, app[KEYS]):
        try:
            with naming(config_file):
                begun = await _unless(stopping, runner.setup())
            if begun:
                port = await _listen(runner, sockets, config.server.host)
                address = f"{url_host(config.server.host)}:{port}"
                gc.collect()
                gc.freeze()  # what was loaded stays, and need not be looked at again
                gc.set_threshold(*_GC_THRESHOLDS)
                print(f"rolltap is serving {config.models[0].name} on http://{address}", flush=True)
                await stopping.wait()
                for site in [*runner.sites]:
                    await site.stop()
                await app[PIPELINE].drain(config.server.drain_s)
        finally:
            await runner.cleanup()


async def _listen(runner: web.AppRunner, sockets: list[socket.socket], host: str) -> int:
    """Begin to listen; the port. A port that is bound can still be lost to a process that listened first."""
    port: int = sockets[0].getsockname()[1]
    try:
        for each in sockets:
            await web.SockSite(runner, each, backlog=_BACKLOG).start()
    except OSError as error:
        raise ConfigError(_why_not(host, port, error)) from error
    return port


async def _unless(stopping: asyncio.Event, start: Coroutine[Any, Any, None]) -> bool:
    """Wait for the start, or cancel it when the server is asked to end before; whether it has started."""
    starting = asyncio.ensure_future(start)
    asked = asyncio.ensure_future(stopping.wait())
    await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        asked.cancel()
        starting.result()
        return True
    starting.cancel()
    await asyncio.wait({starting})
    return False


@contextlib.contextmanager
def _signals(stopping: asyncio.Event, keys: Keys) -> Iterator[None]:
    """Set `stopping` on the first signal; leave a second one to the system, which ends the process.

    SIGHUP has the file of keys read again, where there is one.
    """
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        stopping.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    if keys.file:
        loop.add_signal_handler(signal.SIGHUP, keys.reload)
    try:
        yield
    finally:
        for number in (*_SIGNALS, signal.SIGHUP):
            loop.remove_signal_handler(number)


def url_host(host: str) -> str:
    """The host as it stands in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def _log_to_stderr(log_format: str, *, access_log: bool) -> None:
    logging.setLogRecordFactory(SafeRecord)
    handler = logging.StreamHandler(sys.stderr)
    text = TextFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    for name in ("rolltap", "rolltap_plugins", *(["aiohttp.access"] if access_log else [])):
        logging.getLogger(name).setLevel(logging.INFO)
