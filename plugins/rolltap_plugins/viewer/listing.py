"""The list of sessions: kept at hand, so that ten thousand can be searched and sorted between two key strokes."""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from operator import attrgetter
from typing import Any

from aiohttp import web
from msgspec import Struct

from rolltap import BadRequest, NotFound, RolltapError, Server, SessionSummary

RELOAD_S = 60.0
"""How often everything is read anew: entries that another server wrote are not told to this one."""


class Row(Struct, kw_only=True):
    """A session as the list shows it."""

    id: str
    model: str
    group: str
    state: str
    turns: int
    nodes: int
    tokens: int
    reward: float | None
    untrainable: int
    drifted: int
    in_flight: int
    incomplete: int
    created: float
    active: float
    labels: dict[str, Any]
    text: str = ""
    """What a search looks at."""


def row_of(summary: SessionSummary) -> Row:
    """The row of a session."""
    labels = " ".join(f"{name}={value}" for name, value in summary.labels.items())
    return Row(
        id=summary.uuid,
        model=summary.model_name,
        group=summary.group,
        state=summary.state,
        turns=summary.num_calls,
        nodes=summary.num_nodes,
        tokens=summary.num_tokens,
        reward=summary.reward,
        untrainable=summary.num_untrainable,
        drifted=summary.num_drifted,
        in_flight=summary.in_flight,
        incomplete=summary.incomplete,
        created=summary.created_at,
        active=summary.last_accessed,
        labels=summary.labels,
        text=f"{summary.uuid} {summary.model_name} {summary.group} {labels}".lower(),
    )


class Query(Struct, forbid_unknown_fields=True):
    """What a page of the list asks for."""

    q: str = ""
    group: str | None = None
    state: str = ""
    mark: str = ""
    sort: str = "active"
    desc: bool = True
    offset: int = 0
    limit: int = 200

    def takes(self, row: Row) -> bool:
        """Whether a row is asked for."""
        return (
            (self.group is None or row.group == self.group)
            and (not self.state or row.state == self.state)
            and (not self.mark or bool(getattr(row, self.mark)))
            and all(word in row.text for word in self.q.lower().split())
        )


SORTS = {"id", "group", "state", "turns", "nodes", "tokens", "reward", "created", "active"}
MARKS = {"", "untrainable", "drifted", "in_flight", "incomplete"}


class Listing:
    """All sessions' rows. They are read once, and then again each time a session's log has grown."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._rows: dict[str, Row] = {}
        self._dirty: set[str] = set()
        self._loaded_at: float | None = None
        self._following: asyncio.Task[None] | None = None
        self._loading = asyncio.Lock()
        self._ordered: dict[tuple[str, bool], list[Row]] = {}
        """Rows in an order that was asked for, until one changes."""

    async def close(self, _: web.Application) -> None:
        """End the following (a signal handler of aiohttp)."""
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following

    async def _follow(self) -> None:
        """Note which sessions change."""
        while True:
            with suppress(RolltapError):  # it lagged behind, and begins again with a whole reading
                async for event in self._server.subscribe():
                    self._dirty.add(event.session)
            self._loaded_at = None

    async def page(self, query: Query) -> dict[str, Any]:
        """The rows that a query asks for, and how many there are."""
        if query.sort not in SORTS:
            raise BadRequest(f"sort={query.sort!r}: it is one of {', '.join(sorted(SORTS))}", param="sort")
        if query.mark not in MARKS:
            raise BadRequest(f"mark={query.mark!r}: it is one of {', '.join(sorted(MARKS))}", param="mark")
        rows = await self._sorted(query.sort, desc=query.desc)
        found = [row for row in rows if query.takes(row)]
        part = found[query.offset : query.offset + max(0, min(query.limit, 1000))]
        return {
            "total": len(rows),
            "matched": len(found),
            "offset": query.offset,
            "rows": [{name: getattr(row, name) for name in Row.__struct_fields__[:-1]} for row in part],
        }

    async def totals(self) -> dict[str, Any]:
        """What all sessions add up to, and the groups with their sizes, the largest first."""
        rows = await self._fresh()
        return {
            "sessions": len(rows),
            "open": sum(row.state == "open" for row in rows.values()),
            "tokens": sum(row.tokens for row in rows.values()),
            "untrainable": sum(row.untrainable > 0 for row in rows.values()),
            "drifted": sum(row.drifted > 0 for row in rows.values()),
            "groups": Counter(row.group for row in rows.values()).most_common(500),
        }

    async def rewards(self) -> list[tuple[float, float, str]]:
        """When sessions with a reward were created, the reward, and their group; in order of time."""
        rows = await self._fresh()
        found = [(row.created, row.reward, row.group) for row in rows.values() if row.reward is not None]
        return sorted(found)

    async def _sorted(self, name: str, *, desc: bool) -> list[Row]:
        rows = await self._fresh()
        if (name, desc) not in self._ordered:
            value = attrgetter(name)
            known = [row for row in rows.values() if value(row) is not None]
            known.sort(key=lambda row: (value(row), row.id), reverse=desc)
            # Those without a value stand last in both directions.
            self._ordered[name, desc] = known + [row for row in rows.values() if value(row) is None]
        return self._ordered[name, desc]

    async def _fresh(self) -> dict[str, Row]:
        async with self._loading:
            if self._following is None:
                self._following = asyncio.create_task(self._follow())
                await asyncio.sleep(0)  # it has subscribed then, so that no change is missed
            if self._loaded_at is None or time.monotonic() - self._loaded_at > RELOAD_S:
                self._loaded_at = time.monotonic()
                self._dirty.clear()
                await self._read_all()
            while self._dirty:
                await self._refresh(self._dirty.pop())
                self._ordered.clear()
        return self._rows

    async def _read_all(self) -> None:
        rows = {}
        async for summary in self._server.sessions():
            rows[summary.uuid] = row_of(summary)
            if len(rows) % 100 == 0:
                await asyncio.sleep(0)  # agents come first
        self._rows = rows
        self._ordered.clear()

    async def _refresh(self, session: str) -> None:
        try:
            self._rows[session] = row_of(await self._server.session(session))
        except NotFound:
            self._rows.pop(session, None)
