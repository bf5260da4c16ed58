"""Which backend answers: the session's last one while it is healthy, else the least loaded healthy one.

A session stays where its prefix is cached. A backend that failed is left out until its cool-down ends; if all of
them are cooling down, the one that is ready first is tried, since an answer may come and a refusal can't be better.
"""

from collections import OrderedDict
from collections.abc import Sequence

from rolltap import BackendView, ChatRequest, SessionInfo, hookimpl

REMEMBERED_SESSIONS = 100_000
"""How many sessions' backends are remembered; the one asked for longest ago is forgotten first."""


class StickyRouter:
    """Remembers which backend each session was sent to, and how long each backend has been idle."""

    def __init__(self, remembered: int = REMEMBERED_SESSIONS) -> None:
        self._remembered = remembered
        self._last: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._turns: dict[tuple[str, str], int] = {}
        self._turn = 0

    def select(self, session: SessionInfo | None, backends: Sequence[BackendView]) -> BackendView:
        """One of `backends`, of which there is at least one."""
        healthy = [backend for backend in backends if backend.healthy]
        if not healthy:
            chosen = min(backends, key=lambda backend: backend.retry_in_s)
        else:
            chosen = self._same(session, healthy) or self._least_loaded(healthy)
        self._remember(session, chosen)
        return chosen

    def _same(self, session: SessionInfo | None, healthy: Sequence[BackendView]) -> BackendView | None:
        if session is None:
            return None
        name = self._last.get((session.uuid, healthy[0].model))
        return next((backend for backend in healthy if backend.name == name), None)

    def _least_loaded(self, healthy: Sequence[BackendView]) -> BackendView:
        """Among equally loaded ones the one chosen longest ago, so that an idle set shares new sessions evenly."""
        return min(
            healthy,
            key=lambda backend: (backend.in_flight, self._turns.get((backend.model, backend.name), 0)),
        )

    def _remember(self, session: SessionInfo | None, chosen: BackendView) -> None:
        self._turn += 1
        self._turns[chosen.model, chosen.name] = self._turn
        if session is None:
            return
        key = (session.uuid, chosen.model)
        self._last[key] = chosen.name
        self._last.move_to_end(key)
        if len(self._last) > self._remembered:
            self._last.popitem(last=False)


_router = StickyRouter()


@hookimpl
def select_backend(
    request: ChatRequest,  # noqa: ARG001  (a hook's arguments have fixed names)
    session: SessionInfo | None,
    backends: Sequence[BackendView],
) -> BackendView:
    """Always an answer."""
    return _router.select(session, backends)
