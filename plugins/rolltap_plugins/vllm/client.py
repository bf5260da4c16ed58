"""vLLM's HTTP server as the backend sees it: what it serves, its answers and its errors."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import orjson
from msgspec import Struct

from rolltap import UpstreamError
from rolltap_plugins.vllm.options import Options
from rolltap_plugins.vllm.parameters import Endpoint

PATHS: dict[Endpoint, str] = {"generate": "/inference/v1/generate", "completions": "/v1/completions"}
"""Where each endpoint is."""

_DEFAULT_LOGPROBS_MODE = "raw_logprobs"
"""vLLM's own default for `--logprobs-mode`."""

# uvicorn drops idle connections after 5 s; a request sent on one at that moment would fail.
_KEEP_ALIVE_S = 3.0

_TOO_LONG = re.compile(r"maximum (context|model) length|max_model_len", re.IGNORECASE)


class Served(Struct, frozen=True, kw_only=True):
    """What a server said about itself when it was asked."""

    model: str
    endpoint: Endpoint
    max_model_len: int | None
    """The longest sequence, in tokens; None where the server does not say."""
    logprobs_mode: str
    tells_weights: bool
    """Whether it tells the version of its weights at `/weight_info`: in vLLM's development mode."""


class Client:
    """One server. `start` opens the connections, `close` ends them."""

    def __init__(self, url: str, options: Options) -> None:
        self.url = url
        self._options = options
        self._session: aiohttp.ClientSession | None = None
        self._asking: asyncio.Task[Served] | None = None

    async def start(self) -> None:
        """Get ready to send requests; the server need not be there yet."""
        key = os.environ.get(self._options.api_key_env) if self._options.api_key_env else None
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._options.connect_timeout_s, sock_read=self._options.timeout_s
            ),
            headers={"Authorization": f"Bearer {key}"} if key else None,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Drop all connections."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        if self._session is not None:
            await self._session.close()

    async def served(self) -> Served:
        """What the server serves: asked once, by one request for all that wait, and again after `forget`."""
        task = self._asking
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(task)

    def forget(self) -> None:
        """Ask again before the next request: the server may have been replaced."""
        if self._asking is not None and self._asking.done():
            self._asking = None

    @asynccontextmanager
    async def stream(self, path: str, body: dict[str, Any]) -> AsyncIterator[aiohttp.StreamReader]:
        """The event stream that answers `body`; leaving early closes the connection, upon which vLLM aborts.

        Raises `UpstreamError` for any other answer, aiohttp's errors where there is none.
        """
        data = orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS)
        headers = {"Content-Type": "application/json"}
        async with self._opened.post(self.url + path, data=data, headers=headers) as response:
            if response.status != 200:
                raise _error(response, await response.read())
            if response.content_type != "text/event-stream":
                raise UpstreamError(
                    f"{response.url} answered with {response.content_type!r} in place of an event stream"
                )
            try:
                yield response.content
            except aiohttp.ClientPayloadError as error:
                raise UpstreamError(f"the vLLM server at {self.url} broke off its reply: {error}") from error

    async def get(self, path: str, *, missing: Any = msgspec.UNSET) -> Any:
        """The JSON at `path`; `missing`, where given, if the server has no such path. Raises `UpstreamError`."""
        async with self._opened.get(self.url + path) as response:
            data = await response.read()
            if response.status in {403, 404, 405} and missing is not msgspec.UNSET:
                return missing
            if response.status != 200:
                raise _error(response, data)
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise UpstreamError(
                f"{self.url}{path} answered with something that is not JSON: {error}"
            ) from error

    async def healthy(self) -> bool:
        """Whether the server answers and its engine is alive."""
        try:
            async with self._opened.get(
                self.url + "/health", timeout=aiohttp.ClientTimeout(total=5)
            ) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    @property
    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the vLLM backend was not started")
        return self._session

    async def _ask(self) -> Served:
        card = _chosen(await self._cards(), self._options.model)
        model = self._options.model or card.get("id")
        if not model:
            raise UpstreamError(f"{self.url}/v1/models lists no model; name it with the option 'model'")
        return Served(
            model=model,
            endpoint=await self._endpoint(),
            max_model_len=card.get("max_model_len"),
            logprobs_mode=await self._logprobs_mode(),
            tells_weights=await self.get("/weight_info", missing=None) is not None,
        )

    async def _cards(self) -> list[dict[str, Any]]:
        listed = await self.get("/v1/models", missing={} if self._options.model else msgspec.UNSET)
        return list(listed.get("data") or ())

    async def _endpoint(self) -> Endpoint:
        """The token endpoint if the server has it: an empty body is refused by it and costs the engine nothing."""
        if self._options.endpoint != "auto":
            return self._options.endpoint
        async with self._opened.post(self.url + PATHS["generate"], json={}) as response:
            data = await response.read()
            if response.status in {400, 422}:
                return "generate"
            if response.status in {403, 404, 405, 501}:
                return "completions"
            raise _error(response, data)

    async def _logprobs_mode(self) -> str:
        if self._options.logprobs_mode:
            return self._options.logprobs_mode
        if launched := self._options.launch_arg("--logprobs-mode"):
            return launched
        info = await self.get("/server_info?config_format=json", missing={})
        config = info.get("vllm_config")
        model_config = config.get("model_config") if isinstance(config, dict) else None
        return str((model_config or {}).get("logprobs_mode") or _DEFAULT_LOGPROBS_MODE)


def event_error(data: dict[str, Any], url: str) -> UpstreamError:
    """The error that an event in a stream tells of."""
    error = data["error"]
    status = error.get("code") if isinstance(error, dict) else None
    return _upstream_error(f"{url} failed", status if isinstance(status, int) else None, data, {})


def _chosen(cards: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The card of the model called `name`, else the first: adapters that are loaded when asked for have none."""
    return next((card for card in cards if card.get("id") == name), cards[0] if cards else {})


def _error(response: aiohttp.ClientResponse, data: bytes) -> UpstreamError:
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        body = data.decode(errors="replace")[:2000]
    return _upstream_error(
        f"{response.url} answered {response.status}", response.status, body, response.headers
    )


def _upstream_error(what: str, status: int | None, body: Any, headers: Any) -> UpstreamError:
    """An `UpstreamError` from an error body: `{"error": {…}}`, older flat ones, FastAPI's `detail`, or plain text."""
    inner = body.get("error", body) if isinstance(body, dict) else body
    said = inner.get("message") or inner.get("detail") if isinstance(inner, dict) else inner
    message = f"{what}: {said}" if said else what
    code = inner.get("code") if isinstance(inner, dict) else None
    if _TOO_LONG.search(message):
        code = "context_length_exceeded"
    return UpstreamError(
        message, status=status, code=code if isinstance(code, str) else None, headers=headers
    )
