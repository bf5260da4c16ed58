"""A session at run time: an async view of its log."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from typing import Protocol, TypeVar

from rolltap.bases.stores import Store
from rolltap.bodies import Bodies
from rolltap.broadcast import Broadcast
from rolltap.errors import BadRequest, ErrorInfo, NotFound, RequestError
from rolltap.record.fold import SessionRecord
from rolltap.record.forest import Node
from rolltap.types.ledger import DeliveryChanged, Entry, Event, SessionInfo, SessionSealed, SessionSummary

log = logging.getLogger(__name__)

T = TypeVar("T")


class Keeper(Protocol):
    """What a session needs of the collection that it belongs to."""

    @property
    def store(self) -> Store:
        """Where the log is."""

    @property
    def events(self) -> Broadcast:
        """Who is told of new entries."""

    async def kept(self, work: Awaitable[T]) -> T:
        """What the store answers; its failure is a `StoreError`."""


class InFlight(Protocol):
    """A call in flight, as its session sees it."""

    def cut(self, info: ErrorInfo) -> None:
        """End it early with this error."""

    async def wait_over(self) -> None:
        """Wait until it has ended."""


class Session:
    """A session at run time: what its log says, and the calls that are in flight here."""

    def __init__(self, record: SessionRecord, info: SessionInfo, sessions: Keeper) -> None:
        self.record = record
        self.info = info
        self.calls: set[InFlight] = set()
        """The calls in flight, which end with the session."""
        self.last_accessed = time.time()
        self.bodies: defaultdict[str, Bodies] = defaultdict(Bodies)
        """What has been read of its requests, by dialect: the next ones repeat most of it."""
        self.labels: dict[str, str] = {}
        """What each tree is, by its root, as far as plugins have been asked."""
        self._sessions = sessions
        self._reading = asyncio.Lock()
        self._seals = 0
        """Requests to seal it that wait for the calls in flight."""

    @property
    def id(self) -> str:
        """The session's id."""
        return self.info.uuid

    @property
    def durable(self) -> bool:
        """Whether its log survives this process."""
        return self._sessions.store.durable

    async def append(self, entry: Entry) -> list[Node]:
        """Keep an entry, then fold the log up to it; return the nodes it added.

        An entry for a session that was deleted meanwhile is dropped. Raises `StoreError`.
        """
        if self.record.deleted:
            return self._dropped()
        try:
            seq = await self._sessions.kept(self._sessions.store.append(self.id, entry))
        except LookupError:
            self.record.deleted = True
            return self._dropped()
        self.last_accessed = time.time()
        if seq == self.record.seq + 1:
            nodes = self.record.apply(seq, entry)
        else:
            await self.catch_up()
            if self.record.deleted:
                return self._dropped()
            forest = self.record.forest
            nodes = [forest[output.node_id] for output in getattr(entry, "outputs", ())]
        self._sessions.events.publish(Event(self.id, seq, entry))
        return nodes

    def _dropped(self) -> list[Node]:
        log.info("session %s was deleted while a call was in flight; its record is dropped", self.id)
        return []

    async def catch_up(self) -> None:
        """Fold what others have appended to the log."""
        async with self._reading:
            store, record = self._sessions.store, self.record
            tail = await self._sessions.kept(store.read(self.id, record.seq - 1))
            if not tail:  # not even the last known entry: somebody else has deleted the log
                record.deleted = True
            for seq, entry in tail:
                if seq == record.seq + 1:  # not folded by somebody else meanwhile
                    record.apply(seq, entry)

    def check_open(self) -> None:
        """Raise `RequestError` where no call may be added any more."""
        record, limits = self.record, self.info.limits
        if record.sealed is not None or self._seals:
            raise RequestError(
                ErrorInfo(
                    status=409,
                    message=f"session {self.id} is sealed: its record is complete, and no call may be added",
                    type="invalid_request_error",
                    code="session_sealed",
                    should_retry=False,
                )
            )
        used: list[tuple[str, float, float | None]] = [
            ("turns", record.num_calls + len(self.calls), limits.turns),
            ("tokens", record.num_generated, limits.tokens),
            ("deadline_s", time.time() - self.info.created_at, limits.deadline_s),
        ]
        for name, value, limit in used:
            if limit is not None and value >= limit:
                raise BadRequest(
                    f"this session has reached its limit: limits.{name} = {limit:g}", code="session_limit"
                )

    async def seal(self) -> SessionSealed:
        """End the session's recording, once the calls in flight have ended; again: the same."""
        self._seals += 1  # from now on no call begins: none may end up behind the seal
        try:
            while self.calls:
                await asyncio.wait([asyncio.ensure_future(call.wait_over()) for call in self.calls])
            if self.record.sealed is None:
                await self.append(SessionSealed(snapshot=self.record.digest(), sealed_at=time.time()))
        finally:
            self._seals -= 1
        sealed = self.record.sealed
        if sealed is None:
            raise NotFound(f"session {self.id} was deleted meanwhile", code="session_not_found")
        return sealed

    async def set_delivery(self, node_ids: Sequence[str], *, delivered: bool) -> None:
        """Note whether a client has got these nodes' completion."""
        await self.append(
            DeliveryChanged(node_ids=tuple(node_ids), delivery="delivered" if delivered else "aborted")
        )

    def summary(self) -> SessionSummary:
        """The session as listings show it."""
        record = self.record
        forest = record.forest
        rewards = dict(record.rewards)
        settings = {name: getattr(self.info, name) for name in SessionInfo.__struct_fields__}
        return SessionSummary(
            **settings,
            last_accessed=self.last_accessed,
            num_nodes=len(forest) if self.info.track_tree else forest.num_leaves,
            num_calls=record.num_calls,
            num_tokens=record.num_generated,
            num_untrainable=record.num_untrainable,
            num_drifted=record.num_drifted,
            state="open" if record.sealed is None else "sealed",
            incomplete=max(0, len(record.begun) - len(self.calls)),
            in_flight=len(self.calls),
            rewards=rewards,
            reward=next(iter(rewards.values())) if len(rewards) == 1 else rewards.get("reward"),
        )
