"""A server as a backend sees it: plain answers, event streams, and errors that say who failed and show no secret."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar, overload

import aiohttp
import msgspec
import orjson

from rolltap import UpstreamError
from rolltap_plugins.upstream.errors import http_error, unreadable

Shape = TypeVar("Shape")
Missing = TypeVar("Missing")

MAX_BODY_BYTES = 256 * 2**20
"""The longest answer that is read; of an error's no more than `_MAX_ERROR_BYTES`."""

_MAX_ERROR_BYTES = 2**16

# uvicorn drops idle connections after 5 s; a request sent on one at that moment would fail.
_KEEP_ALIVE_S = 3.0

_SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie", re.IGNORECASE)
_SHORTEST_SECRET = 6
"""Shorter ones would hide words of the message."""

NO_SUCH_PATH = frozenset({403, 404, 405, 501})
"""What servers answer where they lack an endpoint, or have it switched off."""


class Upstream:
    """One server. `start` opens the connections, `close` ends them.

    :param url: what paths are put after.
    :param name: what the server is called in errors, such as "the vLLM server at http://127.0.0.1:8000"; "": errors
        are the upstream's own words.
    :param key: sent as a bearer token.
    :param headers: further headers of every request.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float,
        timeout_s: float,
        name: str = "",
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url
        self.name = name
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s, sock_read=timeout_s)
        self._headers = dict(headers or {}) | ({"Authorization": f"Bearer {key}"} if key else {})
        secrets = [key or "", *(v for name, v in self._headers.items() if _SECRET_HEADER.search(name))]
        self._secrets = [secret for secret in secrets if len(secret) >= _SHORTEST_SECRET]
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Get ready to send requests; the server need not be there yet."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=self._timeout,
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Drop all connections."""
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def post(self, path: str, body: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to a JSON body. Leaving early closes the connection, upon which engines stop their work.

        :raises UpstreamError: for any other status than 200, and where the answer is broken off. Where there is none,
            aiohttp's errors come through.
        """
        data = orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS)
        headers = {"Content-Type": "application/json"}
        async with self._opened.post(
            self.url + path, data=data, headers=headers, allow_redirects=False
        ) as response:
            if response.status != 200:
                raise await self._refusal(response)
            try:
                yield response
            except aiohttp.ClientPayloadError as error:
                raise UpstreamError(f"{self.name or 'the upstream'} broke off its reply: {error}") from error

    @overload
    async def ask(
        self, path: str, shape: type[Shape], *, body: Any = None, timeout_s: float | None = None
    ) -> Shape: ...

    @overload
    async def ask(
        self,
        path: str,
        shape: type[Shape],
        *,
        missing: Missing,
        missing_at: frozenset[int] = NO_SUCH_PATH,
        body: Any = None,
        timeout_s: float | None = None,
    ) -> Shape | Missing: ...

    async def ask(
        self,
        path: str,
        shape: type[Shape],
        *,
        missing: Any = msgspec.UNSET,
        missing_at: frozenset[int] = NO_SUCH_PATH,
        body: Any = None,
        timeout_s: float | None = None,
    ) -> Any:
        """The JSON at `path` as a `shape`; posted where there is a body.

        `missing`, where given, stands for an answer whose status is in `missing_at`. Raises as `post` does.
        """
        method = "GET" if body is None else "POST"
        limit = self._timeout if timeout_s is None else aiohttp.ClientTimeout(total=timeout_s)
        async with self._opened.request(
            method, self.url + path, json=body, allow_redirects=False, timeout=limit
        ) as response:
            if response.status in missing_at and missing is not msgspec.UNSET:
                return missing
            if response.status != 200:
                raise await self._refusal(response)
            return self.decode(await self.whole(response), msgspec.json.Decoder(shape))

    async def status(self, path: str, *, body: Any = None, timeout_s: float) -> int | None:
        """The status that the server answers with; None where it does not answer."""
        method = "GET" if body is None else "POST"
        limit = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._opened.request(
                method, self.url + path, json=body, allow_redirects=False, timeout=limit
            ) as response:
                return response.status
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def whole(self, response: aiohttp.ClientResponse, limit: int = MAX_BODY_BYTES) -> bytes:
        """The whole body. Raises `UpstreamError` where it is longer than the limit."""
        data = await _read_up_to(response, limit)
        if len(data) > limit:
            raise unreadable(self.name, f"it is longer than {limit} bytes")
        return data

    def decode(self, data: bytes, decoder: "msgspec.json.Decoder[Shape]") -> Shape:
        """JSON as the decoder's type. Raises `UpstreamError` for JSON of another shape, and for what is no JSON."""
        try:
            return decoder.decode(data)
        except msgspec.ValidationError as error:
            raise unreadable(self.name, error) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise unreadable(self.name, f"it is not JSON ({error}): {data[:200]!r}") from error

    def told(self, error: UpstreamError) -> UpstreamError:
        """The error without the secrets that this client sends, in case that the upstream repeats them."""
        for secret in self._secrets:
            error.message = error.message.replace(secret, "***")
            error.args = (error.message,)
        return error

    async def _refusal(self, response: aiohttp.ClientResponse) -> UpstreamError:
        data = (await _read_up_to(response, _MAX_ERROR_BYTES))[:_MAX_ERROR_BYTES]
        return self.told(http_error(response.status, data, response.headers, self.name))

    @property
    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the backend was not started: await its start() first")
        return self._session


async def _read_up_to(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body, of which no more is read once it is longer than the limit."""
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            break
    return b"".join(pieces)
