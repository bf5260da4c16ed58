"""The server as plugins see it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal

from aiohttp import web

from rolltap.bases.backends import BackendView
from rolltap.bases.server import Handler, Server
from rolltap.errors import NotFound
from rolltap.plugins import Plugins
from rolltap.record.forest import Node
from rolltap.record.lineage import tree_view
from rolltap.record.views import Decode, RecordedNode, view, views
from rolltap.server.access import require_key, session_of
from rolltap.server.state import MODELS, PIPELINE, PLUGINS, SESSIONS
from rolltap.session import Session
from rolltap.types.frozen import FrozenDict
from rolltap.types.ledger import Event, ReplyForgotten, SessionSummary
from rolltap.types.nodes import NodeView


async def nodes_of(
    session: Session,
    plugins: Plugins,
    *,
    mask: Literal["owned", "all"] = "owned",
    tree: bool | None = None,
    decode: Decode | None = None,
) -> list[RecordedNode]:
    """What a session has recorded; see `Server.nodes`."""
    whole = session.info.track_tree if tree is None else tree
    nodes = views(session.record, tree=whole, unmask=mask == "all", decode=decode)
    incomplete = session.summary().incomplete
    for node in nodes:
        node.incomplete = incomplete
        node.label = await _label(plugins, session, node.root)
    return nodes


async def _label(plugins: Plugins, session: Session, root: Node) -> str:
    """What the node's tree is; plugins are asked once for each tree."""
    known = session.labels.get(root.id)
    if known is None:
        seen = tree_view(session.record, root)
        known = session.labels[root.id] = (
            await plugins.call_first("label_tree", tree=seen, session=session.info) or ""
        )
    return known


class RunningServer(Server):
    """`rolltap.Server` of one application."""

    def __init__(self, app: web.Application) -> None:
        self._app = app
        self.public: set[web.AbstractResource] = set()
        """Resources that need no key."""

    def sessions(
        self,
        *,
        group: str = "",
        state: Literal["", "open", "sealed"] = "",
        after: str = "",
        limit: int | None = None,
    ) -> AsyncIterator[SessionSummary]:
        """See `Server.sessions`."""
        return self._app[SESSIONS].page(group=group, state=state, after=after, limit=limit)

    async def session(self, session_id: str) -> SessionSummary:
        """See `Server.session`."""
        sessions = self._app[SESSIONS]
        # Looking at a session is no use of it: one that nobody uses must expire all the same.
        return await sessions.summary(session_id) or (await sessions.get(session_id)).summary()

    async def nodes(
        self,
        session_id: str,
        *,
        mask: Literal["owned", "all"] = "owned",
        tree: bool | None = None,
        after: str | None = None,
        lineage: str | None = None,
    ) -> Sequence[NodeView]:
        """See `Server.nodes`."""
        session = await self._app[SESSIONS].get(session_id)
        found = await nodes_of(session, self._app[PLUGINS], mask=mask, tree=tree, decode=self.decode)
        if after is not None:
            new = session.record.forest.after(after)
            found = [node for node in found if node.node_id in new]
        if lineage is not None:
            found = [node for node in found if node.label == lineage]
        return found

    async def session_of(self, request: web.Request) -> SessionSummary | None:
        """See `Server.session_of`."""
        session = await session_of(request)
        return session.summary() if isinstance(session, Session) else None

    async def reply(self, session_id: str, reply_id: str) -> NodeView:
        """See `Server.reply`."""
        session = await self._app[SESSIONS].get(session_id)
        return view(session.record, _kept(session, reply_id), tree=True, decode=self.decode)

    async def forget_reply(self, session_id: str, reply_id: str) -> None:
        """See `Server.forget_reply`."""
        session = await self._app[SESSIONS].get(session_id)
        _kept(session, reply_id)
        await session.append(ReplyForgotten(reply_id=reply_id))

    def subscribe(self, *, session: str | None = None) -> AsyncIterator[Event]:
        """See `Server.subscribe`."""
        return self._app[SESSIONS].events.subscribe(session=session)

    def require_key(self, request: web.Request) -> None:
        """See `Server.require_key`."""
        require_key(request)

    def decode(self, model: str, ids: Sequence[int]) -> str:
        """See `Server.decode`."""
        return self._app[MODELS].decode(model, ids)

    @property
    def counts(self) -> Mapping[str, int]:
        """See `Server.counts`."""
        sessions = self._app[SESSIONS]
        return FrozenDict({**self._app[PIPELINE].counts, **sessions.counts, "sessions": len(sessions)})

    @property
    def models(self) -> Sequence[str]:
        """See `Server.models`."""
        return tuple(model.name for model in self._app[MODELS])

    @property
    def backends(self) -> Sequence[BackendView]:
        """See `Server.backends`."""
        return tuple(handle.view for model in self._app[MODELS] for handle in model.backends)

    @property
    def state(self) -> Mapping[str, Any]:
        """See `Server.state`."""
        return self._app[PIPELINE].updates.state()

    def add_route(self, method: str, path: str, handler: Handler, *, public: bool = False) -> None:
        """See `Server.add_route`."""
        route = self._app.router.add_route(method, path, handler)
        if public and route.resource is not None:
            self.public.add(route.resource)


def _kept(session: Session, reply_id: str) -> Node:
    node = session.record.reply(reply_id)
    if node is None:
        raise NotFound(
            f"session {session.id} has kept no reply {reply_id!r}: it was never given, not stored or deleted",
            code="reply_not_found",
            param="id",
        )
    return node
