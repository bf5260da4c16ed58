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
    match event.entry:
        case SessionCreated(info=info):
            return {"kind": "created", "group": info.group, "model": info.model_name}
        case CallBegun(call_id=call):
            return {"kind": "begun", "call": call}
        case CallFailed(call_id=call, reason=reason):
            return {"kind": "failed", "call": call, "reason": reason}
        case CallRecorded() as call:
            return {"kind": "call", **_call(call)}
        case DeliveryChanged(node_ids=nodes, delivery=delivery):
            return {"kind": "delivery", "nodes": nodes, "delivery": delivery}
        case RewardGiven(value=value, name=name):
            return {"kind": "reward", "value": value, "name": name}
        case SessionSealed():
            return {"kind": "sealed"}
        case SessionDeleted():
            return {"kind": "deleted"}
    return {"kind": "unknown"}


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


async def send_events(request: web.Request, server: Server, *, session: str | None) -> web.StreamResponse:
    """Answer with a stream that lasts until the browser leaves or the server ends."""
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )
    await response.prepare(request)
    events = aiter(server.subscribe(session=session))
    coming = asyncio.ensure_future(anext(events))
    try:
        await response.write(b": here\n\n")
        while True:
            await asyncio.wait({coming}, timeout=PING_S)
            if not coming.done():
                await response.write(b": still here\n\n")
                continue
            event = coming.result()
            coming = asyncio.ensure_future(anext(events))
            await response.write(b"data: " + orjson.dumps(described(event), default=list) + b"\n\n")
    except (ClientConnectionResetError, RolltapError, StopAsyncIteration):
        pass  # the browser left, or lags behind: it comes back and reads everything anew
    finally:
        coming.cancel()
        await asyncio.wait({coming})
    return response
