"""A real rolltap server on a free port of 127.0.0.1, for tests."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from aiohttp import ClientSession, web

from rolltap.bases.backends import Backend
from rolltap.hookspecs import hookimpl
from rolltap.server.app import create_app

MODEL = "test-model"


class GivenBackends:
    """A plugin that gives ready-made backends: kind "given", option `number`."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._backends = backends

    @hookimpl
    def create_backend(self, kind: str, options: dict[str, Any]) -> Backend | None:
        """The backend of that number."""
        return self._backends[options["number"]] if kind == "given" else None


class RunningServer:
    """A server under test: its address, its application, and a client session for plain HTTP."""

    def __init__(self, url: str, app: web.Application, http: ClientSession) -> None:
        self.url = url
        self.app = app
        self.http = http

    async def session(self, **settings: Any) -> str:
        """Create a session; return its id."""
        async with self.http.post("/sessions/create", json=settings) as response:
            body = await response.json()
            assert response.status == 200, body  # noqa: S101 - a test's own helper
            return str(body["uuid"])

    async def nodes(self, session: str, **query: str) -> list[dict[str, Any]]:
        """What the session has recorded."""
        async with self.http.get(f"/{session}/nodes", params=query) as response:
            body = await response.json()
            assert response.status == 200, body  # noqa: S101 - a test's own helper
            return list(body["nodes"])

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Post JSON; return the status and the answer's JSON."""
        async with self.http.post(path, json=body) as response:
            return response.status, await response.json()


Serve = Callable[..., Awaitable[RunningServer]]
"""What the fixture `rolltap_serve` is: `server = await rolltap_serve(backend, …)`."""


@asynccontextmanager
async def serve(
    *backends: Backend,
    plugins: Sequence[object] = (),
    config: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
) -> AsyncIterator[RunningServer]:
    """Serve these backends under the name "test-model".

    `model` adds to the model's table; `config` gives other tables, or a whole config of its own `models`. Sessions are kept in
    memory unless `config` names another store.
    """
    table = {
        "name": MODEL,
        "backends": [{"kind": "given", "number": number} for number in range(len(backends))],
        **(model or {}),
    }
    settings = {"models": [table], "store": {"kind": "memory"}, **(config or {})}
    app = create_app(settings, plugins=[GivenBackends(backends), *plugins])
    async with AsyncExitStack() as stack:
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        http = await stack.enter_async_context(ClientSession(url))
        yield RunningServer(url, app, http)
