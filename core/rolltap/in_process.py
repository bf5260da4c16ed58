"""A chat backend used in this process: bodies of a wire format in and out, without a server, a session or a record.

It is the server's own way of a request, with one backend and nothing recorded. Two things differ, because nobody's HTTP
client is on the other side: bodies are read leniently (`MessageConverter.decode_leniently`), and a stream that just
stops is taken as ended.
"""

import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import cache
from typing import Any

import orjson

from rolltap.backend_handle import BackendHandle
from rolltap.bases import backends
from rolltap.bases.converters import MessageConverter
from rolltap.call import Call, Origin, Unrecorded
from rolltap.classifying import classify
from rolltap.config import BackendConfig, ModelConfig, PluginsConfig
from rolltap.errors import PluginError
from rolltap.models import Model, Models
from rolltap.pipeline import Pipeline
from rolltap.plugins import Plugins
from rolltap.types.chat import ChatRequest
from rolltap.types.generation import Completion
from rolltap.types.in_process import BackendResponse, StreamEvent

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
                if "function" in call and not call["function"]["name"]:
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
        call = _begin(backend, converter, converter.decode_leniently({**body, "stream": False}))
        async with aclosing(call.deltas()) as deltas:
            async for _ in deltas:
                pass
        return BackendResponse(converter.encode(call.request, call.completion), headers=headers)
    except Exception as error:  # noqa: BLE001 - the boundary at which errors become this dialect's answers
        info = await classify(_plugins(), error)
        reply = converter.error(info, f"req_{uuid.uuid4().hex}")
        return BackendResponse(reply.body, reply.status, {**headers, **reply.headers}, error=info.message)


async def _stream(
    backend: backends.ChatBackend, dialect: str, body: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    """The reply's frames, one at a time. The first waits for the backend to accept, so that a refusal stands alone."""
    converter = await _converter(dialect)
    encoder = converter.stream(ChatRequest(), Completion(id="", model="", created=0))
    try:
        call = _begin(backend, converter, converter.decode_leniently({**body, "stream": True}))
        encoder = converter.stream(call.request, call.completion)
        begun = False
        async with aclosing(call.deltas()) as deltas:
            async for delta in deltas:
                start = b"" if begun else encoder.start()
                begun = True
                for frame in _frames(start + encoder.delta(delta)):
                    yield frame
        for frame in _frames((b"" if begun else encoder.start()) + encoder.finish(call.completion)):
            yield frame
    except Exception as error:  # noqa: BLE001 - as above
        for frame in _frames(encoder.error(await classify(_plugins(), error))):
            yield frame


def _begin(backend: backends.ChatBackend, converter: MessageConverter, request: ChatRequest) -> Call:
    """The request's call: its model is whatever it names, and the backend is the only one."""
    kind = type(backend).__name__
    config = ModelConfig(name=request.model or kind, tool_parser="", backends=[BackendConfig(kind=kind)])
    handle = BackendHandle(backend, name=kind, kind=kind, model=config.name, may_just_stop=True)
    pipeline = Pipeline(Models([Model(config, [handle], None)]), _plugins())
    return pipeline.begin(request, Unrecorded(), Origin(converter.dialect, id_prefix=converter.id_prefix))


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
