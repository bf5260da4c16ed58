"""The application: what it is made of, how it starts and how it ends."""

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from aiohttp import web

from rolltap.bases.stores import Store
from rolltap.config import Config
from rolltap.errors import ConfigError
from rolltap.models import load_models
from rolltap.pipeline import Pipeline
from rolltap.plugins import Plugins
from rolltap.server.access import guard
from rolltap.server.admin import add_admin_routes
from rolltap.server.dialects import dialect_resources
from rolltap.server.errors import add_headers, errors_as_json
from rolltap.server.keys import Keys
from rolltap.server.public import RunningServer
from rolltap.server.rollouts import add_rollout_routes
from rolltap.server.routes import add_routes
from rolltap.server.state import (
    CONFIG,
    CONVERTERS,
    DIALECTS,
    GUARDED,
    KEYS,
    MODELS,
    PIPELINE,
    PLUGINS,
    SERVER,
    SESSIONS,
)
from rolltap.sessions import Sessions

ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | Config | None


def create_app(config: ConfigSource = None, *, plugins: Sequence[object] = ()) -> web.Application:
    """The server as an aiohttp application.

    `config` is a path, a dict, a `Config`, or None for the embedded model. `plugins` are objects or modules with
    functions marked `@rolltap.hookimpl`; they are asked before all others. Raises `ConfigError`, here or when the
    application starts: backends are created and started then.
    """
    settings = Config.load(config)
    app = web.Application(
        middlewares=[errors_as_json, guard], client_max_size=int(settings.server.max_body_mb * 1024 * 1024)
    )
    app[CONFIG] = settings
    app[KEYS] = Keys(settings.server.api_keys, settings.server.api_keys_file)
    app[PLUGINS] = Plugins.load(settings.plugins, plugins)
    app[CONVERTERS] = {}
    app[DIALECTS] = []
    app[GUARDED] = set()
    app.on_response_prepare.append(add_headers)
    add_routes(app)
    add_rollout_routes(app)
    add_admin_routes(app)
    _add_plugin_routes(app)
    app.cleanup_ctx.append(_run)
    return app


def _add_plugin_routes(app: web.Application) -> None:
    """Let plugins add routes. Each needs a key, but those added as public ones and those of wire formats."""
    own = set(app.router.resources())
    app[SERVER] = server = RunningServer(app)
    app[PLUGINS].call_all_sync("register_routes", app=app, server=server)
    app[GUARDED] |= set(app.router.resources()) - own - server.public - dialect_resources(app)


async def _run(app: web.Application) -> AsyncIterator[None]:
    """Everything that lives as long as the server listens."""
    settings, plugins = app[CONFIG], app[PLUGINS]
    async with AsyncExitStack() as stack:
        store = await create_store(settings, plugins)
        await store.start()
        stack.push_async_callback(store.close)
        app[SESSIONS] = sessions = Sessions(
            store, max_sessions=settings.server.max_sessions, ttl_s=settings.server.session_ttl_s
        )
        await sessions.restore()
        app[MODELS] = models = await load_models(settings, plugins)
        stack.push_async_callback(models.close)
        app[PIPELINE] = pipeline = Pipeline(
            models, plugins, request_timeout_s=settings.server.request_timeout_s
        )
        stack.push_async_callback(pipeline.close)
        await stack.enter_async_context(_background(sessions.sweep()))
        yield


@asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do work for as long as the context lasts."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def create_store(settings: Config, plugins: Plugins) -> Store:
    """The store that the config names; it is not started yet. Raises `ConfigError` where no plugin makes it."""
    store: Store | None = await plugins.call_first(
        "create_store", kind=settings.store.kind, options=dict(settings.store.options)
    )
    if store is None:
        raise ConfigError(
            f"store.kind = {settings.store.kind!r}: no plugin creates such a store"
            f"{plugins.hint('create_store', settings.store.kind)}; `rolltap plugins` shows what is loaded"
        )
    return store
