"""Sessions: each one a view of its log, folded as far as it has been read."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import TypeVar

import msgspec

from rolltap.bases.stores import Store
from rolltap.broadcast import Broadcast
from rolltap.errors import BadRequest, ErrorInfo, NotFound, Overloaded, RolltapError, StoreError
from rolltap.record.fold import SessionRecord
from rolltap.session import Session
from rolltap.types.ledger import Event, SessionCreated, SessionDeleted, SessionInfo, SessionSummary

log = logging.getLogger(__name__)

T = TypeVar("T")

_IDLE_S = 60.0
"""How long after its last use a session leaves memory; its log stays in the store."""


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
        self.events = Broadcast()
        """Every entry as it is recorded."""

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
        if session is not None and self.store.shared:
            await session.catch_up()
        if session is None or session.record.deleted:
            self._forget(uuid)
            raise NotFound(
                f"session {uuid!r} is unknown here: never created, deleted or expired; POST /sessions/create makes one",
                code="session_not_found",
            )
        session.last_accessed = self._known[uuid] = time.time()
        return session

    async def _load(self, uuid: str) -> Session | None:
        """Read a session's log. None where the store has none."""
        if uuid not in self._known and not self.store.shared:
            return None
        session = await self._fold(uuid)
        if session is None or (uuid not in self._known and not self.store.shared):  # deleted meanwhile
            return None
        self._summaries.pop(uuid, None)
        self._known.setdefault(uuid, time.time())
        return self._loaded.setdefault(uuid, session)

    async def _fold(self, uuid: str) -> Session | None:
        """What a session's log adds up to; None where there is none."""
        record = SessionRecord()
        for seq, entry in await self.kept(self.store.read(uuid)):
            record.apply(seq, entry)
        if record.info is None or record.deleted:
            return None
        session = Session(record, record.info, self)
        session.last_accessed = self._known.get(uuid, record.last_at)
        return session

    async def each(self, *, group: str = "", state: str = "", after: str = "") -> AsyncIterator[Session]:
        """The sessions to be read, in the order of their creation; those after the cursor `after`.

        One at a time is in memory, and none counts as used.
        """
        async for _, uuid in self._ids(after):
            known = self._summaries.get(uuid)
            if known is not None and group not in {"", known.group}:
                continue
            session = await self._peek(uuid)
            if session is None or group not in {"", session.info.group}:
                continue
            if state in {"", session.summary().state}:
                yield session

    async def _ids(self, after: str) -> AsyncIterator[tuple[int, str]]:
        """The numbers and ids of all sessions after a cursor, which may be that of one deleted meanwhile."""
        if after and not (after.isascii() and after.isdigit() and len(after) < 19):
            raise BadRequest(f"after={after!r}: it is a cursor that a listing has given", param="after")
        last = int(after or 0)
        while page := await self.kept(self.store.sessions(after=last, limit=1000)):
            for each in page:
                yield each
            last = page[-1][0]

    async def _peek(self, uuid: str) -> Session | None:
        loaded = self._loaded.get(uuid)
        if loaded is None:
            return await self._fold(uuid)
        if self.store.shared:
            await loaded.catch_up()
        return None if loaded.record.deleted else loaded

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
        self.events.publish(Event(info.uuid, seq, entry))
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
        self._forget(uuid)
        await self.kept(self.store.delete(uuid))

    def _forget(self, uuid: str) -> None:
        self._loaded.pop(uuid, None)
        self._known.pop(uuid, None)
        self._summaries.pop(uuid, None)

    async def page(
        self, *, group: str = "", state: str = "", after: str = "", limit: int | None = None
    ) -> AsyncIterator[SessionSummary]:
        """Summaries of the sessions, in the order of their creation, `limit` at most.

        `after` is the `cursor` of the last one that was seen, which may be deleted meanwhile.
        """
        left = limit
        async for number, uuid in self._ids(after):
            if left == 0:
                return
            summary = await self.summary(uuid)
            if summary is None or group not in {"", summary.group} or state not in {"", summary.state}:
                continue
            yield msgspec.structs.replace(summary, cursor=str(number))
            left = None if left is None else left - 1

    async def summary(self, uuid: str) -> SessionSummary | None:
        """A session's summary, without counting as an access; None where it is gone."""
        known = self._summaries.get(uuid)
        if known is not None and not self.store.shared and uuid not in self._loaded:
            return known
        if uuid not in self._known and not self.store.shared:
            return None
        session = await self._peek(uuid)
        if session is None:
            return None
        summary = session.summary()
        if uuid in self._known and uuid not in self._loaded:
            self._summaries[uuid] = summary
        return summary

    async def restore(self) -> None:
        """Take up the sessions that the store has kept; their logs are read when they are asked for."""
        now = time.time()
        self._known.update({uuid: now async for _, uuid in self._ids("")})

    async def expire(self) -> None:
        """Delete the sessions that nobody has used for `session_ttl_s` seconds; let idle ones leave memory."""
        now = time.time()
        for uuid, accessed in [*self._known.items()]:
            session = self._loaded.get(uuid)
            if session is not None and session.calls:
                continue
            used = accessed if session is None else max(accessed, session.last_accessed)
            if used < now - self._ttl_s and not await self._used_elsewhere(uuid, now - self._ttl_s):
                log.info("session %s expired", uuid)
                with suppress(NotFound):
                    await self.delete(uuid)
            elif session is not None and used < now - _IDLE_S:
                self._unload(session, session.summary())

    async def _used_elsewhere(self, uuid: str, since: float) -> bool:
        """Whether another server has recorded something in it; here it has not been used for long."""
        session = await self._peek(uuid) if self.store.shared else None
        if session is None or session.record.last_at < since:
            return False
        self._known[uuid] = session.record.last_at
        return True

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
