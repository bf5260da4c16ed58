"""What ends a rollout: rewards, sealing, deleting a group; and the stream of everything that is recorded."""

import asyncio
import math
import time
from contextlib import suppress

import msgspec
import orjson
from aiohttp import ClientConnectionResetError, web
from msgspec import Struct

from rolltap.errors import BadRequest, NotFound, RolltapError
from rolltap.record.openai_form import as_openai
from rolltap.server.access import require_key
from rolltap.server.dialects import PING_AFTER_S, read_json
from rolltap.server.errors import json_response
from rolltap.server.state import SERVER, SESSIONS
from rolltap.session_settings import converted
from rolltap.types.ledger import CallRecorded, Event, RewardGiven

ENDING = web.AppKey("ENDING", asyncio.Event)
"""Set when the server ends."""


class _Reward(Struct, forbid_unknown_fields=True):
    value: float
    name: str = "reward"
    node_id: str | None = None


def add_rollout_routes(app: web.Application) -> None:
    """Add them. Streams of events end when the server does: it would wait for them."""
    app[ENDING] = asyncio.Event()
    app.on_shutdown.append(_end_streams)
    app.router.add_post("/{sid}/reward", reward)
    app.router.add_post("/{sid}/seal", seal)
    app.router.add_delete("/sessions", delete_group)
    app.router.add_get("/events", events)


async def reward(request: web.Request) -> web.Response:
    """`POST /{sid}/reward {value, name?, node_id?}`: the last of a name wins; without `node_id` it is every leaf's."""
    session = await request.app[SESSIONS].get(request.match_info["sid"])
    wanted = converted(await read_json(request), _Reward)
    if not math.isfinite(wanted.value):
        raise BadRequest("value must be a finite number", param="value")
    if wanted.node_id is not None and wanted.node_id not in session.record.forest:
        raise NotFound(
            f"node {wanted.node_id!r} is not of this session", code="node_not_found", param="node_id"
        )
    entry = RewardGiven(value=wanted.value, name=wanted.name, node_id=wanted.node_id, given_at=time.time())
    await session.append(entry)
    return json_response(
        {"uuid": session.id, "name": wanted.name, "value": wanted.value, "node_id": wanted.node_id}
    )


async def seal(request: web.Request) -> web.Response:
    """`POST /{sid}/seal`: once the calls in flight have ended, no call may be added; the same again and again."""
    session = await request.app[SESSIONS].get(request.match_info["sid"])
    sealed = await session.seal()
    summary = session.summary()
    return json_response(
        {
            "uuid": session.id,
            "state": "sealed",
            "snapshot": sealed.snapshot,
            "num_nodes": summary.num_nodes,
            "complete": not summary.incomplete,
        }
    )


async def delete_group(request: web.Request) -> web.Response:
    """`DELETE /sessions?group=`."""
    require_key(request)
    group = request.query.get("group", "")
    if not group:
        raise BadRequest("group is missing: it says which sessions are deleted", param="group")
    sessions = request.app[SESSIONS]
    deleted = 0
    for uuid in [summary.uuid async for summary in sessions.page(group=group)]:
        with suppress(NotFound):  # deleted by somebody else meanwhile
            await sessions.delete(uuid)
            deleted += 1
    return json_response({"status": "deleted", "group": group, "deleted": deleted})


async def events(request: web.Request) -> web.StreamResponse:
    """`GET /events`, with `?session=`: every entry as it is recorded, as server-sent events."""
    only = request.query.get("session")
    if only is None:
        require_key(request)
    else:
        await request.app[SESSIONS].get(only)
    subscription = request.app[SERVER].subscribe(session=only)
    response = web.StreamResponse(
        headers={"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
    )
    await response.prepare(request)
    await response.write(b": rolltap\n\n")
    ending = asyncio.ensure_future(request.app[ENDING].wait())
    pending = asyncio.ensure_future(anext(subscription))
    try:
        while not ending.done():
            await asyncio.wait({pending, ending}, timeout=PING_AFTER_S, return_when=asyncio.FIRST_COMPLETED)
            if not pending.done():
                await response.write(b": ping\n\n")
                continue
            await response.write(_frame(pending.result()))
            pending = asyncio.ensure_future(anext(subscription))
    except (ClientConnectionResetError, RolltapError, StopAsyncIteration):
        pass  # the reader left, or lags too far behind
    finally:
        pending.cancel()
        ending.cancel()
        await asyncio.wait({pending, ending})
    return response


async def _end_streams(app: web.Application) -> None:
    """A signal handler of aiohttp."""
    app[ENDING].set()


def _frame(event: Event) -> bytes:
    data = orjson.dumps(event_body(event))
    return b"event: %b\ndata: %b\n\n" % (_kind(event).encode(), data)


def _kind(event: Event) -> str:
    return str(event.entry.__struct_config__.tag)


def event_body(event: Event) -> dict[str, object]:
    """An entry for a reader of events: what it says, without ids and logprobs, which `nodes` gives."""
    body: dict[str, object] = {"session": event.session, "seq": event.seq, "type": _kind(event)}
    entry = event.entry
    if not isinstance(entry, CallRecorded):
        said: dict[str, object] = msgspec.to_builtins(entry, str_keys=True)
        return body | said
    return body | {
        "call_id": entry.call_id,
        "parent_id": entry.parent_id,
        "model": entry.context.model,
        "backend": entry.backend,
        "dialect": entry.dialect,
        "client": entry.client,
        "request_id": entry.request_id,
        "times": msgspec.structs.asdict(entry.times),
        "usage": msgspec.structs.asdict(entry.usage),
        "messages": [as_openai(message) for message in entry.prompt.messages],
        "nodes": [
            {
                "node_id": output.node_id,
                "finish_reason": output.finish_reason,
                "trainable": output.untrainable_reason is None,
                "untrainable_reason": output.untrainable_reason,
                "num_generated": len(output.ids) // 4,
                "message": as_openai(output.message) if output.message is not None else None,
            }
            for output in entry.outputs
        ],
    }
