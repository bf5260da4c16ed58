"""A chat backend over aiohttp: a body out, chunks in, with as little in between as there can be."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec
import orjson
from yarl import URL

from rolltap import ChatBackend, ChatDelta, ChatRequest, UpstreamError
from rolltap_plugins.openai_backend.options import Options
from rolltap_plugins.upstream.errors import http_error
from rolltap_plugins.upstream.replies import ReplyReader
from rolltap_plugins.upstream.requests import chat_body
from rolltap_plugins.upstream.sse import EventReader

_DONE = b"[DONE]"

_CLOSES_WITHIN_S = 1.0
"""How long a stream may take to end after its `[DONE]`, lest its connection be thrown away."""

# Servers drop idle connections after 5 s or more; a request sent on one at that moment would fail.
_KEEP_ALIVE_S = 3.0


class OpenAIBackend(ChatBackend):
    """Asks a server that speaks Chat Completions; streamed where the client streams, else plain."""

    parameters = None
    ends_explicitly = True

    def __init__(self, options: Options, model: str) -> None:
        self.url = options.url or options.api_base
        self.model = options.model or model
        self._options = options
        self._style = options.style
        self._endpoint = URL(options.endpoint)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Get ready to send requests; the server need not be there yet."""
        options = self._options
        headers = {"Content-Type": "application/json", **options.headers}
        if options.api_key_env:
            headers["Authorization"] = f"Bearer {os.environ[options.api_key_env]}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=options.connect_timeout_s, sock_read=options.timeout_s
            ),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Drop all connections."""
        if self._session is not None:
            await self._session.close()

    async def check(self) -> dict[str, Any]:
        """Ask the server which models it has. Raises where it can't be reached or refuses the key."""
        async with self._opened.get(self._endpoint.parent.parent / "models") as response:
            data = await response.read()
            if response.status in {404, 405, 501}:  # a server may do without the list
                return {"model": self.model}
            if response.status != 200:
                raise http_error(response.status, data, response.headers)
        names = [card.get("id") for card in _json(data).get("data") or ()]
        return {"model": self.model, "listed": self.model in names}

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Answer the request. Raises `UpstreamError`, and aiohttp's errors where there is no answer.

        Leaving early closes the connection, upon which servers stop their work.
        """
        body = orjson.dumps(chat_body(request, self.model, self._style))
        reader = ReplyReader(request, self._number_ids)
        async with self._opened.post(self._endpoint, data=body) as response:
            if response.status != 200:
                raise http_error(response.status, await response.read(), response.headers)
            if response.content_type != "text/event-stream":
                for delta in reader.whole(_json(await response.read())):
                    yield delta
                return
            content, events, done = response.content, EventReader(), False
            while not done:
                data = await content.readany()
                for event in events.feed(data) if data else events.finish():
                    if event == _DONE:
                        done = True
                        continue
                    for delta in reader.chunk(_json(event)):
                        yield delta
                if not data:
                    return  # without [DONE]: what has no finish reason is not finished
            for delta in reader.end():
                yield delta
            await _read_to_end(content)

    def _number_ids(self) -> None:
        self._style = msgspec.structs.replace(self._style, number_ids=True)

    @property
    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the backend was not started: await its start() first")
        return self._session


async def _read_to_end(content: aiohttp.StreamReader) -> None:
    if not content.at_eof():
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(_CLOSES_WITHIN_S):
                await content.read()


def _json(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise UpstreamError(f"the upstream answered with something that is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UpstreamError("the upstream answered with JSON that is no object")
    return value
