"""The routes of wire formats: a body in, a plain reply or an event stream out."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from hashlib import sha256
from typing import Any

import msgspec
from aiohttp import ClientConnectionResetError, web

from rolltap.bases.converters import MessageConverter
from rolltap.bodies import parse
from rolltap.call import Call, Origin, Unrecorded
from rolltap.errors import BadRequest, PluginError, RequestError
from rolltap.pipeline import Pipeline
from rolltap.plugins.tracing import TRACE_HEADER, current_trace, encoded, tracing
from rolltap.server.access import session_of
from rolltap.server.converters import converter_for
from rolltap.server.errors import error_headers, error_info, json_response
from rolltap.server.several import SeveralCalls, begin_all
from rolltap.server.state import DIALECTS, MODELS, PIPELINE, REQUEST_ID
from rolltap.session import Session
from rolltap.types.chat import ChatRequest, Message
from rolltap.types.generation import ChatDelta

log = logging.getLogger(__name__)

ACCEPT_WITHIN_S = 1.0
"""How long the first bytes wait for the backend to accept a streamed request: a refusal in this time is answered with
its proper status, a later one inside the stream."""

PING_AFTER_S = 15.0
"""How long a stream may be silent before it is sent a ping, lest a proxy in between closes it."""

RECEIVE_WITHIN_S = 300.0
"""How long a client may take to send a body. One whose body breaks off would keep its request waiting for ever."""


def add_dialect(
    app: web.Application,
    dialect: str,
    path: str,
    *,
    count_path: str | None = None,
    fields: Mapping[str, Any] | None = None,
    query: Sequence[str] = (),
) -> None:
    """Serve a wire format at `path`, such as "/v1/chat/completions", with and without a session in front of it.

    `path` + "/render" answers with the prompt that the next call would send, and `count_path`, where the dialect has
    one, with the number of its tokens. What a dialect says outside of the body is put into it: the path's variables, such
    as "{model}", the parameters that `query` names, and `fields`.
    """
    route = DialectRoute(dialect, fields or {}, query)
    dialects = app.setdefault(DIALECTS, [])
    if dialect not in dialects:
        dialects.append(dialect)
    for prefix in ("", "/{sid}"):
        app.router.add_post(prefix + path, route.answer)
        app.router.add_post(f"{prefix}{path}/render", route.render)
        if count_path is not None:
            app.router.add_post(prefix + count_path, route.count)


def dialect_resources(app: web.Application) -> set[web.AbstractResource]:
    """The resources of wire formats, which look for a session before they ask for a key."""
    return {
        route.resource
        for route in app.router.routes()
        if isinstance(getattr(route.handler, "__self__", None), DialectRoute) and route.resource is not None
    }


async def read_json(request: web.Request) -> dict[str, Any]:
    """The body, a JSON object. Raises `BadRequest`."""
    return parse(await _received(request))


async def _received(request: web.Request) -> bytes:
    """The body, once the whole of it has come."""
    try:
        async with asyncio.timeout(RECEIVE_WITHIN_S):
            return await request.read()
    except TimeoutError:
        raise BadRequest(
            f"the body did not come within {RECEIVE_WITHIN_S:g} s", code="timeout", status=408
        ) from None
    except web.RequestPayloadError as error:
        reason = str(error).rpartition("message:")[2].strip()
        raise BadRequest(f"the body can't be read: {reason}", code="invalid_body") from error


def _decoded(converter: MessageConverter, body: dict[str, Any], session: Session | Unrecorded) -> ChatRequest:
    """The request that a body is. A converter's own fault is named as such, not taken for the client's."""

    def kept(reply_id: str) -> Message | None:
        node = session.record.reply(reply_id)
        return node.output.message if node is not None else None

    try:
        if not isinstance(session, Session):
            chat = converter.decode_within(body, kept)
            return msgspec.structs.replace(chat, keep=False) if chat.keep else chat
        return converter.decode_next(body, kept, session.bodies[converter.dialect].read)
    except RequestError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise PluginError(
            f"the converter for {converter.dialect!r} could not read the body: {what}"
        ) from error


class DialectRoute:
    """Answers the requests of one dialect."""

    def __init__(self, dialect: str, fields: Mapping[str, Any], query: Sequence[str]) -> None:
        self._dialect = dialect
        self._fields = fields
        self._query = query

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """A request for a completion; one with `x-rolltap-trace: 1` is told which plugins it went through."""
        if request.headers.get(TRACE_HEADER) != "1":
            return await self._answer(request)
        with tracing() as trace:
            response = await self._answer(request)
            if not response.prepared:
                response.headers[TRACE_HEADER] = encoded(trace)
            return response

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        received = time.time()
        converter = await converter_for(request.app, self._dialect)
        try:
            session = await session_of(request)  # before the body is read: a stranger's may be large
            chat = _decoded(converter, await self._body(request, session), session)
            origin = await _origin(request, converter, session, received)
            begin = begin_all if chat.more_prompts else Pipeline.begin
            call: Call | SeveralCalls = begin(request.app[PIPELINE], chat, session, origin)
            if isinstance(call, SeveralCalls):
                chat = msgspec.structs.replace(chat, sampling=call.sampling)
            try:
                reply = _Reply(request, converter, chat, call)
            except BaseException:  # a converter's fault: the call would stay in flight for ever
                call.abandon()
                raise
            if isinstance(session, Session):
                return await call.serve(reply.send())
            return await reply.send()
        except Exception as error:  # noqa: BLE001 - the boundary at which errors become this dialect's answers
            return await self._error(request, converter, error)

    async def render(self, request: web.Request) -> web.StreamResponse:
        """What the next call would send; nothing is recorded."""
        converter = await converter_for(request.app, self._dialect)
        try:
            session = await session_of(request)
            chat = _decoded(converter, await self._body(request, session), session)
            return json_response(await _rendered(request, chat, session))
        except Exception as error:  # noqa: BLE001 - as above
            return await self._error(request, converter, error)

    async def count(self, request: web.Request) -> web.StreamResponse:
        """How many tokens the next call's prompt would have."""
        converter = await converter_for(request.app, self._dialect)
        try:
            session = await session_of(request)
            chat = _decoded(converter, await self._body(request, session), session)
            prompt = await request.app[PIPELINE].render(chat, session)
            return json_response(converter.encode_count(len(prompt.ids)))
        except Exception as error:  # noqa: BLE001 - as above
            return await self._error(request, converter, error)

    async def _body(self, request: web.Request, session: Session | Unrecorded) -> dict[str, Any]:
        """The body, and what the dialect says outside of it."""
        data = await _received(request)
        parsed = session.bodies[self._dialect].parse if isinstance(session, Session) else parse
        body = parsed(data)
        said = {name: value for name, value in request.match_info.items() if name != "sid"}
        asked = {name: request.query[name] for name in self._query if name in request.query}
        return {**body, **said, **asked, **self._fields}

    @staticmethod
    async def _error(request: web.Request, converter: MessageConverter, error: Exception) -> web.Response:
        info = await error_info(request, error)
        reply = converter.error(info, request[REQUEST_ID])
        return json_response(
            reply.body, status=reply.status, headers={**error_headers(info), **reply.headers}
        )


async def _origin(
    request: web.Request, converter: MessageConverter, session: Session | Unrecorded, received: float
) -> Origin:
    """Where the request came from; within a session, also what tells it from another."""
    body = b""
    if isinstance(session, Session):
        body = sha256(await request.read()).digest()
    idempotency = request.headers.get("idempotency-key", "")
    retries = request.headers.get("x-stainless-retry-count", "0")
    return Origin(
        dialect=converter.dialect,
        client=request.headers.get("user-agent", ""),
        request_id=request[REQUEST_ID],
        id_prefix=converter.id_prefix,
        path=request.path,
        body=body,
        idempotency_key=idempotency,
        retry=bool(idempotency) or (retries.isdecimal() and bool(retries.strip("0"))),
        received=received,
    )


async def _rendered(request: web.Request, chat: ChatRequest, session: Session | Unrecorded) -> dict[str, Any]:
    prompt = await request.app[PIPELINE].render(chat, session)
    placement = prompt.placement
    return {
        "prompt_text": request.app[MODELS].decode(placement.context.model, prompt.ids),
        "token_ids": prompt.ids,
        "num_tokens": len(prompt.ids),
        "num_recorded": len(prompt.ids) - len(prompt.new.ids) // 4,
        "parent_id": placement.parent.id if placement.parent is not None else None,
        "why": placement.why(),
        "branch_reason": placement.branch_reason(session.record),
    }


class _Reply:
    """One client's reply, plain or streamed."""

    def __init__(
        self,
        request: web.Request,
        converter: MessageConverter,
        chat: ChatRequest,
        call: Call | SeveralCalls,
    ) -> None:
        self._request = request
        self._converter = converter
        self._chat = chat
        self._call = call
        self._encoder = converter.stream(chat, call.completion)
        self._response = web.StreamResponse(
            headers={
                "content-type": self._encoder.content_type,
                "cache-control": "no-cache",
                "x-accel-buffering": "no",
            }
        )
        self._begun = False
        self._beginning = asyncio.Lock()
        self._last_write = 0.0
        self._filler: asyncio.Future[None] | None = None

    async def send(self) -> web.StreamResponse:
        """Answer the client; say whether it got everything or left."""
        call = self._call
        async with aclosing(call.deltas()) as deltas:
            try:
                if self._chat.stream:
                    response: web.StreamResponse = await self._stream(deltas)
                else:
                    async for _ in deltas:
                        pass
                    response = json_response(self._converter.encode(self._chat, call.completion))
            except ClientConnectionResetError:
                await call.drain(deltas)
                await call.left()
                raise
        await call.delivered()
        return response

    async def _stream(self, deltas: AsyncGenerator[ChatDelta, None]) -> web.StreamResponse:
        """Send every delta as it comes. Raises only before the first byte; later errors go into the stream."""
        silence = asyncio.get_running_loop().call_later(ACCEPT_WITHIN_S, self._fill_silence)
        try:
            async for delta in deltas:
                if not self._begun:
                    await self._begin()
                await self._write(self._encoder.delta(delta))
            await self._begin()
            await self._write(self._encoder.finish(self._call.completion))
            await self._end()
        except ClientConnectionResetError:
            raise
        except Exception as error:
            async with self._beginning:
                if not self._begun:
                    raise
            info = await error_info(self._request, error)
            with suppress(ClientConnectionResetError):
                await self._write(self._encoder.error(info))
                await self._end()
        finally:
            silence.cancel()
            if self._filler is not None:
                self._filler.cancel()
        return self._response

    async def _begin(self) -> None:
        """Send the headers and what stands before the first delta, once."""
        async with self._beginning:
            if not self._begun:
                await self._response.prepare(self._request)
                self._begun = True
                self._last_write = asyncio.get_running_loop().time()
                start = self._encoder.start()
                if start:
                    await self._response.write(start)

    async def _write(self, frames: bytes) -> None:
        if frames:
            self._last_write = asyncio.get_running_loop().time()
            await self._response.write(frames)

    async def _end(self) -> None:
        trace = current_trace()
        if trace is not None and self._encoder.content_type.startswith("text/event-stream"):
            await self._write(f": {TRACE_HEADER} {encoded(trace)}\n\n".encode())
        await self._response.write_eof()

    def _fill_silence(self) -> None:
        """The backend is slow: begin the reply all the same, and ping from now on."""
        self._filler = asyncio.ensure_future(self._ping())

    async def _ping(self) -> None:
        """Break every long silence. Frames are written whole, so a ping never lands inside one."""
        loop = asyncio.get_running_loop()
        with suppress(ClientConnectionResetError):
            await self._begin()
            while True:
                await asyncio.sleep(max(0.0, self._last_write + PING_AFTER_S - loop.time()))
                if loop.time() - self._last_write >= PING_AFTER_S:
                    await self._write(self._encoder.ping())
