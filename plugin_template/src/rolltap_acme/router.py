"""Sends a session to the backend that its metadata names, as long as that one is well."""

from collections.abc import Sequence

from rolltap import BackendView, SessionInfo, hookimpl


@hookimpl
def select_backend(session: SessionInfo | None, backends: Sequence[BackendView]) -> BackendView | None:
    """One of `backends`; None leaves the choice to the next plugin, in the end to rolltap's own."""
    wanted = session.metadata.get("backend") if session is not None else None
    return next((backend for backend in backends if backend.name == wanted and backend.healthy), None)
