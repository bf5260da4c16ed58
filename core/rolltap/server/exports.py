"""Rows in trainers' shapes: `GET /{sid}/nodes?format=` and `GET /sessions/export`."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

import orjson
from aiohttp import web

from rolltap.bases.exports import Export, ExportOptions
from rolltap.exporting import OFF_LOOP_TOKENS, export_format, export_lines
from rolltap.server.access import require_key
from rolltap.server.public import nodes_of
from rolltap.server.queries import one_of
from rolltap.server.state import PLUGINS, SERVER, SESSIONS
from rolltap.types.ledger import SessionSummary
from rolltap.types.nodes import NodeView

log = logging.getLogger(__name__)

Recorded = tuple[SessionSummary, Sequence[NodeView]]


async def rows(request: web.Request, nodes: Sequence[NodeView]) -> web.Response:
    """A session's nodes as rows of the format that the query names: `{"rows": […], "left_out": {…}}`."""
    export = await _export(request)
    session = await request.app[SERVER].session(request.match_info["sid"])
    # Picked here, not in the thread: which leaf trains what must not change from one node to the next.
    picked = export.pick(nodes)
    if sum(node.num_tokens for node in picked) > OFF_LOOP_TOKENS:
        body = await asyncio.to_thread(_encoded, export, session, picked)
    else:
        body = _encoded(export, session, picked)
    return web.Response(body=body, content_type="application/json")


def _encoded(export: Export, session: SessionSummary, nodes: Sequence[NodeView]) -> bytes:
    made = list(export.format.rows(session, nodes))
    return orjson.dumps({"rows": made, **export.summary()}, option=orjson.OPT_NON_STR_KEYS)


async def export_sessions(request: web.Request) -> web.StreamResponse:
    """`GET /sessions/export`: the rows of many sessions as lines of JSON, streamed.

    `?format=`, `?untrainable=` and `?lineage=` say what a row is; `?group=`, `?sealed=true`, `?after=` or one or more
    `?session=` say which sessions. `?progress=true` adds a line after each session's rows.
    """
    require_key(request)
    query = request.query
    export = await _export(request)
    sealed = one_of(query, "sealed", ("false", "true")) == "true"
    progress = one_of(query, "progress", ("false", "true")) == "true"
    lines = export_lines(export, _recorded(request, sealed=sealed), progress=progress)
    # Asked before anything is sent: what is wrong with the request is still an answer of its own.
    first = await anext(lines, b"")
    response = web.StreamResponse(headers={"content-type": "application/x-ndjson"})
    await response.prepare(request)
    try:
        await response.write(first)
        async for some in lines:
            await response.write(some)
    except Exception:
        log.exception("an export ended early")
        # The status has been sent: that rows are missing is told by a connection that breaks off.
        if request.transport is not None:
            request.transport.abort()
    return response


async def _export(request: web.Request) -> Export:
    query = request.query
    options = ExportOptions.of(untrainable=query.get("untrainable", "drop"), lineage=query.get("lineage", ""))
    return Export(await export_format(request.app[PLUGINS], query.get("format", "jsonl")), options)


async def _recorded(request: web.Request, *, sealed: bool) -> AsyncIterator[Recorded]:
    """The sessions that the query names, with their nodes, one at a time."""
    sessions, query = request.app[SESSIONS], request.query
    for session_id in query.getall("session", []):
        session = await sessions.get(session_id)
        if not sealed or session.record.sealed is not None:
            yield (
                session.summary(),
                await nodes_of(session, request.app[PLUGINS], decode=request.app[SERVER].decode),
            )
    if "session" in query:
        return
    group, after = query.get("group", ""), query.get("after", "")
    async for session in sessions.each(group=group, state="sealed" if sealed else "", after=after):
        yield (
            session.summary(),
            await nodes_of(session, request.app[PLUGINS], decode=request.app[SERVER].decode),
        )
