"""The data behind the viewer's pages, as JSON: `/ui/api/…`."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import orjson
from aiohttp import web

from rolltap import BackendView, BadRequest, NodeView, NotFound, Server, SessionSummary, __version__
from rolltap_plugins.viewer.compare import difference_in_ids, difference_in_messages
from rolltap_plugins.viewer.events import Events
from rolltap_plugins.viewer.forest import Forests
from rolltap_plugins.viewer.listing import Listing, Query, row_of
from rolltap_plugins.viewer.pieces import Decode
from rolltap_plugins.viewer.sequence import OpenNode

MOST_OPEN = 16
"""Nodes whose sequences are kept unpacked between the requests of a page that scrolls."""

MOST_TOKENS = 2048
"""Tokens in one answer."""


class Api:
    """The routes of the data."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._listing = Listing(server)
        self._forests = Forests()
        self._events = Events(server)
        self._open: OrderedDict[tuple[str, str, int], OpenNode] = OrderedDict()

    def add_to(self, app: web.Application) -> None:
        """Add them to the server."""
        app.on_shutdown.append(self._events.end)
        app.on_cleanup.append(self._listing.close)
        node = "/ui/api/sessions/{sid}/nodes/{node}"
        for path, handler in {
            "/ui/api/overview": self.overview,
            "/ui/api/sessions": self.sessions,
            "/ui/api/rewards": self.rewards,
            "/ui/api/sessions/{sid}": self.session,
            node: self.node,
            f"{node}/tokens": self.tokens,
            f"{node}/ids": self.ids,
            "/ui/api/compare": self.compare,
            "/ui/api/events": self.events,
        }.items():
            self._server.add_route("GET", path, handler)

    async def overview(self, _: web.Request) -> web.Response:
        """What runs: models, backends, counts, and what the sessions add up to."""
        return _json(
            {
                "version": __version__,
                "models": [
                    {
                        "name": model,
                        "backends": [_backend(each) for each in self._server.backends if each.model == model],
                    }
                    for model in self._server.models
                ],
                "counts": dict(self._server.counts),
                "paused": self._server.state["paused"],
                "paused_since": self._server.state["paused_since"],
                "versions": self._server.state["versions"],
                **await self._listing.totals(),
            }
        )

    async def sessions(self, request: web.Request) -> web.Response:
        """A page of the list: `?q=&group=&state=&mark=&sort=&desc=&offset=&limit=`."""
        try:
            query = msgspec.convert(dict(request.query), Query, strict=False)
        except msgspec.ValidationError as error:
            raise BadRequest(f"the query can't be used: {error}") from None
        return _json(await self._listing.page(query))

    async def rewards(self, _: web.Request) -> web.Response:
        """Every session's reward, with its time and its group."""
        return _json({"points": await self._listing.rewards()})

    async def session(self, request: web.Request) -> web.Response:
        """A session and its forest."""
        sid = request.match_info["sid"]
        summary = await self._server.session(sid)
        nodes = await self._server.nodes(sid, mask="all", tree=True)
        leaves = {node.node_id for node in await self._server.nodes(sid, tree=False)}
        rows = await asyncio.to_thread(self._forests.rows, sid, nodes)
        for row in rows:
            row["leaf"] = row["id"] in leaves
        return _json(
            {
                "session": {
                    **msgspec.structs.asdict(row_of(summary)),
                    "text": None,
                    "rewards": summary.rewards,
                    "sampling": summary.sampling,
                    "metadata": summary.metadata,
                    "base_url": summary.base_url,
                    "tool_parser": summary.tool_parser,
                    "track_tree": summary.track_tree,
                },
                "nodes": rows,
            }
        )

    async def node(self, request: web.Request) -> web.Response:
        """A node: its conversation, its parameters, and how its sequence is made up."""
        sid, name = request.match_info["sid"], request.match_info["node"]
        owned, opened = await self._opened(sid, name)

        def body() -> dict[str, Any]:
            metadata = owned.metadata
            generated = int(metadata.get("num_generated", 0))
            return {
                "id": name,
                "session": sid,
                "num_tokens": len(opened),
                "metadata": metadata,
                "messages": owned.messages,
                "tools": owned.tools,
                "segments": opened.segments(),
                "plot": opened.plot(),
                "surprises": opened.surprises(),
                "raw": opened.output_text(generated) if len(opened) else owned.full_text,
            }

        return _json(await asyncio.to_thread(body))

    async def tokens(self, request: web.Request) -> web.Response:
        """Some tokens of a node: `?start=&end=`."""
        opened = await self._sequence(request)
        start, end = _number(request, "start", 0), _number(request, "end", MOST_TOKENS)
        if not 0 <= start <= end <= start + MOST_TOKENS:
            raise BadRequest(
                f"start={start}, end={end}: ask for at most {MOST_TOKENS} tokens, from start to before end",
                param="end",
            )
        return _json(await asyncio.to_thread(opened.window, start, end))

    async def ids(self, request: web.Request) -> web.Response:
        """All ids of a node."""
        opened = await self._sequence(request)
        return _json({"tokens": opened.tokens.tolist()})

    async def compare(self, request: web.Request) -> web.Response:
        """Where two nodes differ first: `?a=SESSION/NODE&b=SESSION/NODE`."""
        (ours, our_ids), (theirs, their_ids) = [
            await self._opened(*_pair(request, side)) for side in ("a", "b")
        ]

        def body() -> dict[str, Any]:
            return {
                "a": ours.metadata,
                "b": theirs.metadata,
                "messages": difference_in_messages(ours.messages, theirs.messages),
                "ids": difference_in_ids(our_ids, their_ids),
                "tools_differ": list(ours.tools) != list(theirs.tools),
                "sampling_differs": ours.metadata.get("sampling") != theirs.metadata.get("sampling"),
            }

        return _json(await asyncio.to_thread(body))

    async def events(self, request: web.Request) -> web.StreamResponse:
        """What is recorded from now on: `?session=`."""
        return await self._events.send(request, session=request.query.get("session"))

    async def _opened(self, sid: str, name: str) -> tuple[NodeView, OpenNode]:
        """A node as trainers get it, where they get it; a node inside the tree with its own output alone."""
        summary = await self._server.session(sid)
        leaves = [] if summary.track_tree else await self._server.nodes(sid, tree=False)
        owned = next((node for node in leaves if node.node_id == name), None)
        if owned is None:
            owned = _named(await self._server.nodes(sid, tree=True), name, sid)
        key = _key(summary, name)
        if key not in self._open:
            whole = _named(await self._server.nodes(sid, mask="all", tree=True), name, sid)
            decode = self._decoder(str(owned.metadata.get("model", summary.model_name)))
            self._open[key] = await asyncio.to_thread(OpenNode, owned, whole, decode)
            while len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
        return owned, self._open[key]

    async def _sequence(self, request: web.Request) -> OpenNode:
        """The sequence of the node in the path: at hand while a page scrolls through it."""
        sid, name = request.match_info["sid"], request.match_info["node"]
        key = _key(await self._server.session(sid), name)
        if key not in self._open:
            return (await self._opened(sid, name))[1]
        self._open.move_to_end(key)
        return self._open[key]

    def _decoder(self, model: str) -> Decode:
        def decode(ids: Sequence[int]) -> str:
            return self._server.decode(model, list(ids))

        return decode


def _key(summary: SessionSummary, name: str) -> tuple[str, str, int]:
    """What a node is kept under: with each call of its session another node may own tokens that this one owned."""
    return summary.uuid, name, summary.num_calls


def _named(nodes: Sequence[NodeView], name: str, sid: str) -> NodeView:
    for node in nodes:
        if node.node_id == name:
            return node
    raise NotFound(f"session {sid} has no node {name!r}", param="node")


def _backend(backend: BackendView) -> dict[str, Any]:
    names = ("name", "kind", "url", "healthy", "in_flight", "queued", "retry_in_s", "last_error")
    return {name: getattr(backend, name) for name in names}


def _number(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, str(default))
    if not text.isdecimal():
        raise BadRequest(f"{name}={text!r}: it must be a whole number, 0 or more", param=name)
    return int(text)


def _pair(request: web.Request, side: str) -> tuple[str, str]:
    session, _, node = request.query.get(side, "").partition("/")
    if not session or not node:
        raise BadRequest(f"{side}={request.query.get(side, '')!r}: name a node as SESSION/NODE", param=side)
    return session, node


def _json(body: Any) -> web.Response:
    """An answer that nobody keeps."""
    data = orjson.dumps(body, default=_plain, option=orjson.OPT_NON_STR_KEYS)
    return web.Response(body=data, content_type="application/json", headers={"Cache-Control": "no-store"})


def _plain(value: Any) -> Any:
    """What orjson does not know. Integers of more than 64 bits, which a client's own fields may hold, go as text."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    return dict(value) if isinstance(value, Mapping) else str(value)
