"""Sessions: each one an append-only log, and the forest that is the fold of it."""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from itertools import islice

from rolltap.bases.stores import Store
from rolltap.errors import BadRequest, NotFound, Overloaded
from rolltap.record.forest import Forest, Node
from rolltap.types.chat import Message
from rolltap.types.record import (
    Delivery,
    DeliveryChanged,
    Entry,
    ReplyKept,
    SessionCreated,
    SessionDeleted,
    SessionInfo,
)

log = logging.getLogger(__name__)

_LOOK_BACK = 16
"""How many kept replies are compared with a request: as many as may well be gone on from side by side."""


class Session:
    """A session at run time."""

    def __init__(self, info: SessionInfo, store: Store) -> None:
        self.info = info
        self.forest = Forest()
        self._replies: dict[str, ReplyKept] = {}
        self.last_accessed = time.time()
        self.deleted = False
        self._store = store
        self._commit = asyncio.Lock()

    async def append(self, entry: Entry) -> list[Node]:
        """Keep an entry, then take it into the forest; return the nodes it added.

        Entries are folded in the order of the log. An entry for a session that was deleted meanwhile is dropped.
        """
        async with self._commit:
            if self.deleted:
                log.info(
                    "session %s was deleted while a call was in flight; its record is dropped", self.info.uuid
                )
                return []
            await self._store.append(self.info.uuid, entry)
            return self.apply(entry)

    def apply(self, entry: Entry) -> list[Node]:
        """Take an entry of the log into what the session knows; return the nodes it added."""
        if isinstance(entry, ReplyKept):
            self._replies[entry.id] = entry
        return self.forest.apply(entry)

    def conversation(self, reply_id: str) -> list[Message]:
        """The messages up to and including a kept reply. Raises `BadRequest`, worded as OpenAI does."""
        parts: list[list[Message]] = []
        at: str | None = reply_id
        while at is not None:
            kept = self._replies.get(at)
            if kept is None:
                raise BadRequest(
                    f"Previous response with id {at!r} not found: this session has kept no such reply; "
                    "send the conversation instead of its id",
                    code="previous_response_not_found",
                    param="previous_response_id",
                )
            parts.append(kept.messages)
            at = kept.previous_id
        return [message for part in reversed(parts) for message in part]

    def repeated(self, messages: Sequence[Message]) -> tuple[str | None, int]:
        """The kept reply whose conversation these messages begin with, and how many of them that is; None and 0.

        Clients that send the whole conversation each time leave it to the server whether replies are kept: without
        this, what is kept would grow with the square of their turns. Only the latest replies are looked at.
        """
        for reply_id in islice(reversed(self._replies), _LOOK_BACK):
            known = self.conversation(reply_id)
            if len(known) <= len(messages) and all(map(_says_the_same, known, messages)):
                return reply_id, len(known)
        return None, 0

    async def deliver(self, node_ids: list[str], delivery: Delivery) -> None:
        """Note whether a client has got these nodes' completion."""
        await self.append(DeliveryChanged(node_ids, delivery))

    def is_aborted(self, node_ids: Sequence[str]) -> bool:
        """Whether the client of these nodes' call had left."""
        return any(self.forest[node_id].output.delivery == "aborted" for node_id in node_ids)

    async def delete(self) -> None:
        """End the session and forget its log."""
        async with self._commit:
            self.deleted = True
            await self._store.append(self.info.uuid, SessionDeleted())
            await self._store.delete(self.info.uuid)


def _says_the_same(one: Message, other: Message) -> bool:
    """Whether two messages differ in nothing but form: thinking, which clients drop, and what "nothing" looks like."""
    return (
        one.role == other.role
        and one.text == other.text
        and one.tool_calls == other.tool_calls
        and one.tool_call_id == other.tool_call_id
        and one.images == other.images
    )


class Sessions:
    """All sessions of the server."""

    def __init__(self, store: Store, *, max_sessions: int, ttl_s: float) -> None:
        self._store = store
        self._max_sessions = max_sessions
        self._ttl_s = ttl_s
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def __contains__(self, uuid: str) -> bool:
        return uuid in self._sessions

    def get(self, uuid: str) -> Session:
        """The session, now accessed. Raises `NotFound`."""
        session = self._sessions.get(uuid)
        if session is None:
            raise NotFound(
                f"session {uuid!r} is unknown here: never created, deleted or expired; POST /sessions/create makes one",
                code="session_not_found",
            )
        session.last_accessed = time.time()
        return session

    async def create(self, info: SessionInfo) -> Session:
        """A new session with these settings. Raises `Overloaded` past `max_sessions`."""
        if len(self._sessions) >= self._max_sessions:
            raise Overloaded(
                f"this server keeps at most {self._max_sessions} sessions (server.max_sessions); delete some",
                retry_after=60,
            )
        session = Session(info, self._store)
        self._sessions[info.uuid] = session
        try:
            await session.append(SessionCreated(info))
        except BaseException:
            del self._sessions[info.uuid]
            raise
        return session

    async def delete(self, uuid: str) -> None:
        """Delete the session and its log. Raises `NotFound`."""
        session = self.get(uuid)
        del self._sessions[uuid]
        await session.delete()

    async def restore(self) -> None:
        """Take up the sessions that the store has kept."""
        last = 0
        while page := await self._store.sessions(after=last):
            last = page[-1][0]
            for _, name in page:
                entries = [entry for _, entry in await self._store.read(name)]
                session = _fold(entries, self._store)
                if session is not None:
                    self._sessions[name] = session

    async def expire(self) -> None:
        """Delete the sessions that nobody has accessed for `session_ttl_s` seconds."""
        oldest = time.time() - self._ttl_s
        for session in [session for session in self if session.last_accessed < oldest]:
            log.info("session %s expired", session.info.uuid)
            await self.delete(session.info.uuid)

    async def sweep(self) -> None:
        """Expire sessions for as long as the server runs."""
        while True:
            await asyncio.sleep(max(1.0, min(60.0, self._ttl_s / 10)))
            await self.expire()


def _fold(entries: Sequence[Entry], store: Store) -> Session | None:
    """The session that a log tells of; None where it was deleted."""
    match entries:
        case [SessionCreated(info=info), *rest] if not any(
            isinstance(entry, SessionDeleted) for entry in rest
        ):
            session = Session(info, store)
            for entry in rest:
                session.apply(entry)
            return session
    return None
