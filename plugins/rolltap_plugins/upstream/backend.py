"""What backends of engines have in common: a server at an address, or one that rolltap starts and watches."""

import asyncio
import os
import secrets
from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Generic, TypeVar

import aiohttp
import msgspec

from rolltap import TokenBackend, TokenDelta, TokenRequest, UpstreamError
from rolltap_plugins.upstream.engine import Engine, Program
from rolltap_plugins.upstream.http import Upstream
from rolltap_plugins.upstream.options import EngineOptions

Served = TypeVar("Served")

UNNAMED_VERSION = "default"
"""What vLLM and SGLang call weights that nobody has given a version."""


class EngineBackend(TokenBackend, Generic[Served]):
    """A token backend whose engine is a server. `Served` is what the server says about itself when it is asked."""

    ends_explicitly = True
    stops_at_strings = True

    def __init__(self, program: Program, options: EngineOptions, model: str) -> None:
        self._engine = Engine(program, options, model) if options.launch else None
        self.url = self._engine.url if self._engine else options.url
        self._server = Upstream(
            self.url,
            name=f"the {program.name} server at {self.url}",
            key=os.environ.get(options.api_key_env) if options.api_key_env else None,
            connect_timeout_s=options.connect_timeout_s,
            timeout_s=options.timeout_s,
        )
        self._asking: asyncio.Task[Served] | None = None

    @abstractmethod
    async def ask_served(self) -> Served:
        """Ask the server what it serves."""

    @abstractmethod
    async def healthy(self) -> bool:
        """Whether the server answers and its engine is alive."""

    @abstractmethod
    def ask(self, served: Served, request: TokenRequest) -> AsyncGenerator[TokenDelta, None]:
        """Ask a server that serves this; see `TokenBackend.generate`."""

    async def start(self) -> None:
        """Open the client. A launched engine is started and waited for; one at a `url` need not be there yet."""
        await self._server.start()
        if self._engine:
            try:
                await self._engine.start(self.healthy)
            except BaseException:
                await self._server.close()
                raise

    async def close(self) -> None:
        """End a launched engine and close all connections, upon which a server aborts what still runs."""
        if self._engine:
            await self._engine.stop()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        await self._server.close()

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenDelta, None]:
        """See `TokenBackend.generate`. Raises `UpstreamError`, `BadRequest` or aiohttp's errors."""
        served = await self.served()
        began = False
        try:
            async with aclosing(self.ask(served, request)) as deltas:
                async for delta in deltas:
                    began = True
                    yield delta
        except (UpstreamError, aiohttp.ClientError) as error:
            now_served = await self._instead(error, served)
            if began or now_served is None:
                raise
        else:
            return
        async with aclosing(self.ask(now_served, request)) as deltas:
            async for delta in deltas:
                yield delta

    async def ready(self) -> None:
        """Wait for a launched engine that is being started again."""
        if self._engine:
            await self._engine.wait_ready()

    async def served(self) -> Served:
        """What the server serves. One of our own is waited for, also where its death has not been noticed yet."""
        await self.ready()
        try:
            return await self._served()
        except aiohttp.ClientConnectorError:
            if self._engine is None:
                raise
            self._engine.doubt()
            await self._engine.wait_ready()
            return await self._served()

    async def served_anew(self) -> Served:
        """What it serves now, whatever it has said before."""
        await self.ready()
        self._forget()
        return await self._served()

    async def _served(self) -> Served:
        """Asked once, by one request for all that wait, and again after `_forget`."""
        task = self._asking
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._asking = asyncio.create_task(self.ask_served())
        return await asyncio.shield(task)

    def _forget(self) -> None:
        """Ask again before the next request: the server may have been replaced."""
        if self._asking is not None and self._asking.done():
            self._asking = None

    async def _instead(self, error: UpstreamError | aiohttp.ClientError, served: Served) -> Served | None:
        """What may be asked in place of a server that failed; None where its failure is the answer."""
        status = error.status if isinstance(error, UpstreamError) else None
        if status in {403, 404}:
            # No such endpoint or model: the server may have been replaced since it was asked what it serves.
            self._forget()
            now_served = await self._served()
            return now_served if now_served != served else None
        if status is None or status >= 500:
            self._forget()
            if self._engine:
                self._engine.doubt()
        if self._engine and isinstance(error, aiohttp.ClientConnectorError):
            return await self.served()  # nothing was sent, so the next engine can have it
        return None


def engine_request_id(request: TokenRequest) -> str:
    """A name for the engine's log. Of one call there may be several requests at once, and each needs its own."""
    return f"{request.request_id or 'rolltap'}-{secrets.token_hex(4)}"


def joined_salt(request: TokenRequest, extra: dict[str, Any]) -> str:
    """The salt of the request's cached prefixes: the client's own and the one that the weights' version is."""
    return ":".join(filter(None, (extra.get("cache_salt"), request.cache_salt)))


class VersionSpan(msgspec.Struct, frozen=True):
    """Output tokens `[start, end)` were sampled by weights of a version."""

    version: str | int
    start: int
    end: int


def version_spans(spans: list[VersionSpan] | None) -> list[Any] | None:
    """Spans as `TokenDelta.weight_versions` has them; None where the engine's weights were given no version."""
    if not spans or all(span.version == UNNAMED_VERSION for span in spans):
        return None
    return [[span.start, span.end, as_version(span.version)] for span in spans]


def as_version(version: str | int | None) -> str | int | None:
    """A version as trainers count them: engines keep each as text. None where nobody has given one."""
    if version in {UNNAMED_VERSION, "", None}:
        return None
    if isinstance(version, str) and version.isascii() and version.isdigit() and str(int(version)) == version:
        return int(version)
    return version
