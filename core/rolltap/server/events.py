"""`GET /events`: entries as they are recorded, as server-sent events."""

import asyncio

import msgspec
from aiohttp import ClientConnectionResetError, web

from rolltap.errors import RolltapError
from rolltap.server.access import require_key
from rolltap.server.state import SESSIONS

ENDING = web.AppKey("ENDING", asyncio.Event)
"""Set when the server ends."""

PING_S = 15.0
"""How long a stream may be silent before a comment goes out, so that no proxy in between closes it."""


def add_events(app: web.Application) -> None:
    """Add the route, whose streams end with the server."""
    app[ENDING] = asyncio.Event()
    app.on_shutdown.append(_end_streams)
    app.router.add_get("/events", events)


async def events(request: web.Request) -> web.StreamResponse:
    """Every entry from now on, of all sessions or of `?session=`: `data: {"session", "seq", "entry"}`.

    The stream lasts until the reader leaves, lags thousands of entries behind, or the server ends. Bytes (packed ids and
    logprobs) are base64.
    """
    require_key(request)
    session = request.query.get("session")
    sessions = request.app[SESSIONS]
    if session is not None:
        await sessions.get(session)
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )
    await response.prepare(request)
    ending = asyncio.ensure_future(request.app[ENDING].wait())
    recorded = aiter(sessions.subscribe(session=session))
    coming = asyncio.ensure_future(anext(recorded))
    try:
        await response.write(b": from now on\n\n")
        while not ending.done():
            await asyncio.wait({coming, ending}, timeout=PING_S, return_when=asyncio.FIRST_COMPLETED)
            if coming.done():
                event = coming.result()
                coming = asyncio.ensure_future(anext(recorded))
                await response.write(b"data: " + msgspec.json.encode(event) + b"\n\n")
            else:
                await response.write(b": nothing new\n\n")
    except (ClientConnectionResetError, RolltapError, StopAsyncIteration):
        pass
    finally:
        ending.cancel()
        coming.cancel()
        await asyncio.wait({coming, ending})
    return response


async def _end_streams(app: web.Application) -> None:
    """A signal handler of aiohttp, which waits for streams that have not ended."""
    app[ENDING].set()
