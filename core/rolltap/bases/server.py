"""What plugins get of the running server: enough for a viewer, an exporter or a metrics page."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from aiohttp import web

from rolltap.bases.backends import BackendView
from rolltap.types.ledger import Event, SessionSummary
from rolltap.types.nodes import NodeView

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server(ABC):
    """The running server, as plugins see it. It can be used once the server has started."""

    @abstractmethod
    def sessions(
        self,
        *,
        group: str = "",
        state: Literal["", "open", "sealed"] = "",
        after: str = "",
        limit: int | None = None,
    ) -> AsyncIterator[SessionSummary]:
        """The sessions in the order of their creation, `limit` of them at most.

        :param after: the `cursor` of the last one that was seen: only those after it.
        """

    @abstractmethod
    async def session(self, session_id: str) -> SessionSummary:
        """One session. Raises `NotFound`."""

    @abstractmethod
    async def nodes(
        self,
        session_id: str,
        *,
        mask: Literal["owned", "all"] = "owned",
        tree: bool | None = None,
        after: str | None = None,
        lineage: str | None = None,
    ) -> Sequence[NodeView]:
        """What a session has recorded: one node a leaf, or with `tree` one a completion. Raises `NotFound`.

        :param mask: "all": every generated token is unmasked, whichever leaf trains it.
        :param tree: None: as the session's `track_tree` says.
        :param after: a node's id: only the nodes that were recorded after it.
        :param lineage: only nodes of trees with this label, such as "main".
        """

    @abstractmethod
    async def session_of(self, request: web.Request) -> SessionSummary | None:
        """The session that a request belongs to: named in its path (`{sid}`), in `x-rolltap-session` or sent as its key.

        None for a request without one, which one of the server's keys must open. Raises `NotFound`, `RequestError` (401).
        """

    @abstractmethod
    async def reply(self, session_id: str, reply_id: str) -> NodeView:
        """The node of a reply, by the id that its client knows: one that was kept. Raises `NotFound`."""

    @abstractmethod
    async def forget_reply(self, session_id: str, reply_id: str) -> None:
        """Let nothing go on from a reply by its id any more; its node stays. Raises `NotFound`."""

    @abstractmethod
    def subscribe(self, *, session: str | None = None) -> AsyncIterator[Event]:
        """Every entry from now on, as it is recorded; of one session or of all.

        Raises `RolltapError` where the reader falls thousands of entries behind.
        """

    @abstractmethod
    def require_key(self, request: web.Request) -> None:
        """Let a request through if the server has no keys, or the client sent one. Raises `RequestError` (401)."""

    @abstractmethod
    def decode(self, model: str, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens shown; "" where the server has no tokenizer of that model."""

    @property
    @abstractmethod
    def counts(self) -> Mapping[str, int]:
        """What has happened since the start: nodes, untrainable, drifted, aborted, store_failures, sessions, …"""

    @property
    @abstractmethod
    def models(self) -> Sequence[str]:
        """The names of the configured models; the first is the default."""

    @property
    @abstractmethod
    def backends(self) -> Sequence[BackendView]:
        """The backends of all models."""

    @property
    @abstractmethod
    def state(self) -> Mapping[str, Any]:
        """What `GET /admin/state` says: whether calls are paused, since when, and the version of each model's weights."""

    @abstractmethod
    def add_route(self, method: str, path: str, handler: Handler, *, public: bool = False) -> None:
        """Serve a path, in `register_routes`. It needs one of the server's keys, where it has some, unless `public`."""
