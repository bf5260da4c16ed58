"""A chat backend over aiohttp: a body out, chunks in, with as little in between as there can be."""

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Struct

from rolltap import ChatBackend, ChatDelta, ChatRequest
from rolltap_plugins.openai_backend.options import Options
from rolltap_plugins.upstream.http import Upstream
from rolltap_plugins.upstream.replies import ReplyReader
from rolltap_plugins.upstream.requests import chat_body
from rolltap_plugins.upstream.sse import EventStream

_NO_LIST = frozenset({404, 405, 501})
"""What a server answers that has no list of models; it may do without."""

_objects: msgspec.json.Decoder[Mapping[str, Any]] = msgspec.json.Decoder(dict[str, Any])


class _Card(Struct):
    id: str = ""


class _Cards(Struct):
    data: list[_Card] | None = None


class OpenAIBackend(ChatBackend):
    """Asks a server that speaks Chat Completions; streamed where the client streams, else plain."""

    parameters = None
    ends_explicitly = True

    def __init__(self, options: Options, model: str) -> None:
        self.url = options.url or options.api_base
        self.model = options.model or model
        self._style = options.style
        self._upstream = Upstream(
            options.base,
            key=os.environ[options.api_key_env] if options.api_key_env else None,
            headers=options.headers,
            connect_timeout_s=options.connect_timeout_s,
            timeout_s=options.timeout_s,
        )

    async def start(self) -> None:
        """Get ready to send requests; the server need not be there yet."""
        await self._upstream.start()

    async def close(self) -> None:
        """Drop all connections."""
        await self._upstream.close()

    async def check(self) -> dict[str, Any]:
        """Ask the server which models it has. Raises where it can't be reached or refuses the key."""
        cards = await self._upstream.ask("/models", _Cards, missing=None, missing_at=_NO_LIST)
        if cards is None:
            return {"model": self.model}
        return {"model": self.model, "listed": self.model in {card.id for card in cards.data or ()}}

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Answer the request. Raises `UpstreamError`, and aiohttp's errors where there is no answer.

        Leaving early closes the connection, upon which servers stop their work.
        """
        upstream = self._upstream
        reader = ReplyReader(request, self._number_ids, told=upstream.told)
        async with upstream.post(
            "/chat/completions", chat_body(request, self.model, self._style)
        ) as response:
            if response.content_type != "text/event-stream":
                for delta in reader.whole(upstream.decode(await upstream.whole(response), _objects)):
                    yield delta
                return
            stream = EventStream(response.content)
            async with aclosing(stream.read()) as events:
                async for together in events:
                    for data in together:
                        for delta in reader.chunk(upstream.decode(data, _objects)):
                            yield delta
            if stream.done:  # without [DONE], what has no finish reason is not finished
                for delta in reader.end():
                    yield delta

    def _number_ids(self) -> None:
        self._style = msgspec.structs.replace(self._style, number_ids=True)
