"""Sessions: each one a view of its log, folded as far as it has been read."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from rolltap.bases.stores import Store
from rolltap.errors import BadRequest, ErrorInfo, NotFound, Overloaded, RequestError, RolltapError, StoreError
from rolltap.record.fold import SessionRecord
from rolltap.record.forest import Node
from rolltap.types.ledger import (
    DeliveryChanged,
    Entry,
    Event,
    SessionCreated,
    SessionDeleted,
    SessionInfo,
    SessionSealed,
    SessionSummary,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_WAITING = 10_000
"""Events that a subscription may lag behind before it is ended."""

_IDLE_S = 60.0
"""How long after its last use a session leaves memory; its log stays in the store."""


class InFlight(Protocol):
    """A call in flight, as its session sees it."""

    def cut(self, info: ErrorInfo) -> None:
        """End it early with this error."""

    async def wait_over(self) -> None:
        """Wait until it has ended."""


class Session:
    """A session at run time: what its log says, and the calls that are in flight here."""

    def __init__(self, record: SessionRecord, info: SessionInfo, sessions: "Sessions") -> None:
        self.record = record
        self.info = info
        self.calls: set[InFlight] = set()
        """The calls in flight, which end with the session."""
        self.last_accessed = time.time()
        self._sessions = sessions
        self._reading = asyncio.Lock()

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
            forest = self.record.forest
            nodes = [forest[output.node_id] for output in getattr(entry, "outputs", ())]
        self._sessions.publish(Event(self.id, seq, entry))
        return nodes

    def _dropped(self) -> list[Node]:
        log.info("session %s was deleted while a call was in flight; its record is dropped", self.id)
        return []

    async def catch_up(self) -> None:
        """Fold what others have appended to the log."""
        async with self._reading:
            store, record = self._sessions.store, self.record
            for seq, entry in await self._sessions.kept(store.read(self.id, record.seq)):
                if seq == record.seq + 1:  # not folded by somebody else meanwhile
                    record.apply(seq, entry)

    def check_open(self) -> None:
        """Raise `RequestError` where no call may be added any more."""
        record, limits = self.record, self.info.limits
        if record.sealed is not None:
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
        while self.calls:
            await asyncio.wait([asyncio.ensure_future(call.wait_over()) for call in self.calls])
        if self.record.sealed is None:
            await self.append(SessionSealed(snapshot=self.record.digest(), sealed_at=time.time()))
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
            state="open" if record.sealed is None else "sealed",
            incomplete=max(0, len(record.begun) - len(self.calls)),
            in_flight=len(self.calls),
            rewards=rewards,
            reward=next(iter(rewards.values())) if len(rewards) == 1 else rewards.get("reward"),
        )


class Sessions:
    """All sessions of the server."""

    def __init__(self, store: Store, *, max_sessions: int, ttl_s: float) -> None:
        self.store = store
        self.counts: Counter[str] = Counter()
        """How often the store failed: "store_failures"."""
        self.last_failure = ""
        """What the store failed with last."""
        self._max_sessions = max_sessions
        self._ttl_s = ttl_s
        self._loaded: dict[str, Session] = {}
        self._known: dict[str, float] = {}
        """When each session was last accessed, loaded or not."""
        self._summaries: dict[str, SessionSummary] = {}
        """Of the sessions that have left memory."""
        self._subscribers: set[asyncio.Queue[Event | None]] = set()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, uuid: str) -> bool:
        return uuid in self._known

    async def kept(self, work: Awaitable[T]) -> T:
        """What the store answers. Any failure but `LookupError` becomes a `StoreError`, counted."""
        try:
            return await work
        except LookupError:
            raise
        except Exception as error:
            self.counts["store_failures"] += 1
            self.last_failure = f"{type(error).__name__}: {error}"
            log.exception("the store failed")
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"the session store failed: {self.last_failure}") from error

    async def get(self, uuid: str) -> Session:
        """The session, now accessed. Raises `NotFound`."""
        session = self._loaded.get(uuid) or await self._load(uuid)
        if session is None or session.record.deleted:
            raise NotFound(
                f"session {uuid!r} is unknown here: never created, deleted or expired; POST /sessions/create makes one",
                code="session_not_found",
            )
        if self.store.shared:
            await session.catch_up()
        session.last_accessed = self._known[uuid] = time.time()
        return session

    async def _load(self, uuid: str) -> Session | None:
        """Read a session's log. None where the store has none."""
        if uuid not in self._known and not self.store.shared:
            return None
        record = SessionRecord()
        for seq, entry in await self.kept(self.store.read(uuid)):
            record.apply(seq, entry)
        if record.info is None or record.deleted:
            return None
        self._summaries.pop(uuid, None)
        self._known.setdefault(uuid, time.time())
        return self._loaded.setdefault(uuid, Session(record, record.info, self))

    async def create(self, info: SessionInfo) -> Session:
        """A new session with these settings. Raises `Overloaded` past `max_sessions`."""
        if len(self._known) >= self._max_sessions:
            raise Overloaded(
                f"this server keeps at most {self._max_sessions} sessions (server.max_sessions); delete some",
                retry_after=60,
            )
        self._known[info.uuid] = time.time()
        entry, record = SessionCreated(info=info), SessionRecord()
        try:
            seq = await self.kept(self.store.append(info.uuid, entry))
        except BaseException:
            self._known.pop(info.uuid, None)
            raise
        record.apply(seq, entry)
        session = self._loaded[info.uuid] = Session(record, info, self)
        self.publish(Event(info.uuid, seq, entry))
        return session

    async def delete(self, uuid: str) -> None:
        """Delete the session and its log; calls in flight end. Raises `NotFound`."""
        session = await self.get(uuid)
        await session.append(SessionDeleted())
        session.record.deleted = True
        gone = ErrorInfo(
            status=404,
            message=f"session {uuid} was deleted while this call was in flight",
            type="invalid_request_error",
            code="session_not_found",
            should_retry=False,
        )
        for call in [*session.calls]:
            call.cut(gone)
        self._loaded.pop(uuid, None)
        self._known.pop(uuid, None)
        await self.kept(self.store.delete(uuid))

    async def page(
        self, *, group: str = "", state: str = "", after: str = "", limit: int | None = None
    ) -> AsyncIterator[SessionSummary]:
        """Summaries of the sessions, in the order of their creation; those after `after`, `limit` at most."""
        left = limit if limit is not None else -1
        while left != 0:
            ids = await self.kept(self.store.sessions(after=after, limit=1000))
            if not ids:
                return
            for uuid in ids:
                after = uuid
                summary = await self.summary(uuid)
                if (
                    summary is None
                    or (group and summary.group != group)
                    or (state and summary.state != state)
                ):
                    continue
                yield summary
                left -= 1
                if left == 0:
                    return

    async def summary(self, uuid: str) -> SessionSummary | None:
        """A session's summary, without counting as an access; None where it is gone."""
        loaded = self._loaded.get(uuid)
        if loaded is not None:
            return None if loaded.record.deleted else loaded.summary()
        known = self._summaries.get(uuid)
        if known is None or self.store.shared:
            session = await self._load(uuid)
            if session is None:
                return None
            known = session.summary()
            self._unload(session, known)
        return known

    async def restore(self) -> None:
        """Take up the sessions that the store has kept; their logs are read when they are asked for."""
        after, now = "", time.time()
        while ids := await self.kept(self.store.sessions(after=after, limit=1000)):
            self._known.update(dict.fromkeys(ids, now))
            after = ids[-1]

    async def expire(self) -> None:
        """Delete the sessions that nobody has used for `session_ttl_s` seconds; let idle ones leave memory."""
        now = time.time()
        for uuid, accessed in [*self._known.items()]:
            session = self._loaded.get(uuid)
            if session is not None and session.calls:
                continue
            used = accessed if session is None else max(accessed, session.last_accessed)
            if used < now - self._ttl_s:
                log.info("session %s expired", uuid)
                with suppress(NotFound):
                    await self.delete(uuid)
            elif session is not None and used < now - _IDLE_S:
                self._unload(session, session.summary())

    def _unload(self, session: Session, summary: SessionSummary) -> None:
        if not session.calls and self._loaded.get(session.id) is session:
            del self._loaded[session.id]
            self._summaries[session.id] = summary

    async def sweep(self) -> None:
        """Expire sessions for as long as the server runs."""
        while True:
            await asyncio.sleep(max(1.0, min(60.0, self._ttl_s / 10)))
            try:
                await self.expire()
            except RolltapError:
                log.exception("sessions could not be expired; they will be looked at again")

    def publish(self, event: Event) -> None:
        """Tell every subscription of an entry."""
        for queue in [*self._subscribers]:
            if queue.qsize() >= _MOST_WAITING:
                self._subscribers.discard(queue)
                queue.put_nowait(None)
            else:
                queue.put_nowait(event)

    async def subscribe(self, *, session: str | None = None) -> AsyncIterator[Event]:
        """Every entry from now on as it is recorded, of one session or of all.

        Raises `RolltapError` where the reader falls too far behind.
        """
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._subscribers.add(queue)
        try:
            while True:
                event = await queue.get()
                if event is None:
                    raise RolltapError(
                        f"this subscription was ended: it lagged {_MOST_WAITING} events behind"
                    )
                if session is None or event.session == session:
                    yield event
        finally:
            self._subscribers.discard(queue)
