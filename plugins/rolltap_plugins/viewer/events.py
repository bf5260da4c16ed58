"""What is recorded, told to a browser as server-sent events while it happens."""

import asyncio
import time
from typing import Any

import orjson
from aiohttp import ClientConnectionResetError, web

from rolltap import RolltapError, Server
from rolltap.record import (
    CallBegun,
    CallFailed,
    CallRecorded,
    DeliveryChanged,
    Event,
    RewardGiven,
    SessionCreated,
    SessionDeleted,
    SessionSealed,
)

PING_S = 15.0
"""How long a stream may be silent before a comment goes out, so that nobody in between closes it."""


def described(event: Event) -> dict[str, Any]:
    """An event in the few words that a page needs."""
    return {"session": event.session, "seq": event.seq, "at": time.time(), **_entry(event)}


def _entry(event: Event) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": "unknown"}
    match event.entry:
        case SessionCreated(info=info):
            found = {"kind": "created", "group": info.group, "model": info.model_name}
        case CallBegun(call_id=call):
            found = {"kind": "begun", "call": call}
        case CallFailed(call_id=call, reason=reason):
            found = {"kind": "failed", "call": call, "reason": reason}
        case CallRecorded() as call:
            found = {"kind": "call", **_call(call)}
        case DeliveryChanged(node_ids=nodes, delivery=delivery):
            found = {"kind": "delivery", "nodes": nodes, "delivery": delivery}
        case RewardGiven(value=value, name=name):
            found = {"kind": "reward", "value": value, "name": name}
        case SessionSealed():
            found = {"kind": "sealed"}
        case SessionDeleted():
            found = {"kind": "deleted"}
    return found


def _call(call: CallRecorded) -> dict[str, Any]:
    answers = [output.message for output in call.outputs if output.message is not None]
    return {
        "nodes": [output.node_id for output in call.outputs],
        "parent": call.parent_id,
        "said": " ".join(answers[0].text[:400].split())[:120] if answers else "",
        "calls": [each.name for answer in answers for each in answer.tool_calls],
        "seconds": round(call.times.ended - call.times.received, 3),
        "prompt": call.usage.prompt,
        "generated": call.usage.generated,
        "trainable": all(output.untrainable_reason is None for output in call.outputs),
    }


class Events:
    """The streams of all browsers that look. They end when the server does."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ending = asyncio.Event()

    async def end(self, _: web.Application) -> None:
        """End every stream: the server would wait for them (a signal handler of aiohttp)."""
        self._ending.set()

    async def send(self, request: web.Request, *, session: str | None) -> web.StreamResponse:
        """Answer with a stream that lasts until the browser leaves or the server ends."""
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        await response.prepare(request)
        ending = asyncio.ensure_future(self._ending.wait())
        events = aiter(self._server.subscribe(session=session))
        coming = asyncio.ensure_future(anext(events))
        try:
            await response.write(b": here\n\n")
            while not ending.done():
                await asyncio.wait({coming, ending}, timeout=PING_S, return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    event = coming.result()
                    coming = asyncio.ensure_future(anext(events))
                    await response.write(b"data: " + orjson.dumps(described(event), default=list) + b"\n\n")
                else:
                    await response.write(b": still here\n\n")
        except (ClientConnectionResetError, RolltapError, StopAsyncIteration):
            pass  # the browser left, or lags behind: it comes back and reads everything anew
        finally:
            ending.cancel()
            coming.cancel()
            await asyncio.wait({coming, ending})
        return response
