"""A chat backend used directly: bodies of a wire format in and out, without a server, a session or a record.

What the server does with a dialect and what this does are the same parts: the converters that plugins offer, the
classification of errors, the collecting of deltas. Two things differ, because nobody's HTTP client is on the other
side: bodies are read leniently (`MessageConverter.decode_leniently`), and a stream that just stops is taken as ended.
"""

import time
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import cache
from typing import Any

import orjson

from rolltap.bases import backends
from rolltap.bases.converters import MessageConverter
from rolltap.classifying import classify
from rolltap.config import PluginsConfig
from rolltap.errors import PluginError
from rolltap.plugins import Plugins
from rolltap.turns.base import each
from rolltap.turns.collecting import Collector
from rolltap.turns.fragments import CallFragments
from rolltap.types.chat import ChatRequest
from rolltap.types.direct import BackendResponse, StreamEvent
from rolltap.types.generation import ChatDelta, Completion, Usage

ANTHROPIC = "anthropic.messages"
OPENAI = "openai.chat"

Headers = Mapping[str, str]


class ChatBackend(backends.ChatBackend):
    """A backend that works in messages. Its sessions are recorded as text, never trainable.

    Subclasses have `chat`. The four methods here use it directly. A failure is never raised: it is a reply with its
    status, or the stream's last event. `headers` are the caller's own; none is sent upstream, where the backend's
    own credentials apply.
    """

    async def send_message(self, body: dict[str, Any], headers: Headers | None = None) -> BackendResponse:  # noqa: ARG002
        """Answer a body of Anthropic's Messages in the same dialect."""
        return await _send(self, ANTHROPIC, body)

    async def stream_message(
        self,
        body: dict[str, Any],
        headers: Headers | None = None,  # noqa: ARG002
    ) -> AsyncGenerator[StreamEvent, None]:
        """Answer a body of Anthropic's Messages with its events, as they come."""
        async with aclosing(_stream(self, ANTHROPIC, body)) as frames:
            async for frame in frames:
                data = orjson.loads(frame.partition(b"data: ")[2])
                yield StreamEvent(data["type"], data)

    async def send_openai_message(
        self,
        body: dict[str, Any],
        headers: Headers | None = None,  # noqa: ARG002
    ) -> BackendResponse:
        """Answer a body of OpenAI's Chat Completions in the same dialect."""
        response = await _send(self, OPENAI, body)
        for choice in response.body.get("choices", ()):
            for call in choice["message"].get("tool_calls", ()):
                if not call["function"]["name"]:
                    del call["function"]  # as the upstream said it: a call of no function
        return response

    async def stream_openai_message(
        self,
        body: dict[str, Any],
        headers: Headers | None = None,  # noqa: ARG002
    ) -> AsyncGenerator[str, None]:
        r"""Answer a body of OpenAI's Chat Completions with its frames, each `data: …\n\n`, the last `data: [DONE]\n\n`."""
        async with aclosing(_stream(self, OPENAI, body)) as frames:
            async for frame in frames:
                yield frame.decode() + "\n\n"


async def _send(backend: backends.ChatBackend, dialect: str, body: dict[str, Any]) -> BackendResponse:
    converter = await _converter(dialect)
    headers = {"content-type": "application/json"}
    try:
        request = converter.decode_leniently({**body, "stream": False})
        completion = _blank(converter, request)
        async with aclosing(_deltas(backend, request, completion)) as deltas:
            async for _ in deltas:
                pass
        return BackendResponse(converter.encode(request, completion), headers=headers)
    except Exception as error:  # noqa: BLE001 - the boundary at which errors become this dialect's answers
        info = await classify(_plugins(), error)
        reply = converter.error(info, f"req_{uuid.uuid4().hex}")
        return BackendResponse(reply.body, reply.status, {**headers, **reply.headers}, error=info.message)


async def _stream(
    backend: backends.ChatBackend, dialect: str, body: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    """The reply's frames, one at a time. The first waits for the backend to accept, so that a refusal stands alone."""
    converter = await _converter(dialect)
    request = ChatRequest()
    completion = _blank(converter, request)
    encoder = converter.stream(request, completion)
    try:
        request = converter.decode_leniently({**body, "stream": True})
        completion = _blank(converter, request)
        encoder = converter.stream(request, completion)
        begun = False
        async with aclosing(_deltas(backend, request, completion)) as deltas:
            async for delta in deltas:
                start = b"" if begun else encoder.start()
                begun = True
                for frame in _frames(start + encoder.delta(delta)):
                    yield frame
        for frame in _frames((b"" if begun else encoder.start()) + encoder.finish(completion)):
            yield frame
    except Exception as error:  # noqa: BLE001 - as above
        for frame in _frames(encoder.error(await classify(_plugins(), error))):
            yield frame


async def _deltas(
    backend: backends.ChatBackend, request: ChatRequest, completion: Completion
) -> AsyncGenerator[ChatDelta, None]:
    """The backend's deltas; `completion` is filled in by the end."""
    collector, calls = Collector(completion), defaultdict[int, CallFragments](CallFragments)
    usage: Usage | None = None
    pieces = 0
    async with aclosing(each(backend.chat(request), ChatDelta, plugin=type(backend).__name__)) as stream:
        async for delta in stream:
            said = calls[delta.index]
            delta.tool_calls = [fragment for call in delta.tool_calls for fragment in said.take(call)]
            if delta.finish_reason is not None:
                delta.tool_calls += said.finish()
            usage = delta.usage or usage
            pieces += bool(delta.text or delta.reasoning or delta.tool_calls)
            collector.add(delta)
            yield delta
    collector.collect()
    # Where the upstream counts nothing, the pieces that came are the best count of what was generated.
    completion.usage = usage or Usage(completion_tokens=pieces)


def _blank(converter: MessageConverter, request: ChatRequest) -> Completion:
    return Completion(
        id=f"{converter.id_prefix}{uuid.uuid4().hex}", model=request.model, created=int(time.time())
    )


def _frames(data: bytes) -> list[bytes]:
    """The frames of an event stream that are in these bytes, without the empty lines that end them."""
    return data.split(b"\n\n")[:-1]


@cache
def _plugins() -> Plugins:
    """The installed plugins, for callers that have no server."""
    return Plugins.load(PluginsConfig())


async def _converter(dialect: str) -> MessageConverter:
    found: MessageConverter | None = await _plugins().call_first("message_converter", dialect=dialect)
    if found is None:
        raise PluginError(f"no plugin converts the dialect {dialect!r}; `rolltap plugins` shows why")
    return found
