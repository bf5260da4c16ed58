"""Who may do what: sessions by their ids, everything else by the server's keys.

A session's id is a capability: whoever knows it may use that session. The configured `api_keys` open what belongs to
no session: creating and listing sessions, and requests without one.
"""

import hmac
import re

from aiohttp import web

from rolltap.errors import ErrorInfo, RequestError
from rolltap.server.state import CONFIG, SESSIONS
from rolltap.sessions import Session

_SESSION_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def credentials(request: web.Request) -> list[str]:
    """The keys that the client sent, as a bearer token or as `x-api-key`."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    sent = [token.strip()] if scheme.lower() == "bearer" else []
    return [key for key in (*sent, request.headers.get("x-api-key", "")) if key]


def require_key(request: web.Request) -> None:
    """Let the request through if the server has no keys or the client sent one. Raises `RequestError` (401)."""
    if not request.app[CONFIG].server.api_keys or _has_key(request):
        return
    raise RequestError(
        ErrorInfo(
            status=401,
            message="this server needs one of its api_keys, as `Authorization: Bearer KEY` or `x-api-key: KEY`",
            type="authentication_error",
            code="invalid_api_key",
        )
    )


def session_of(request: web.Request) -> Session | None:
    """The session a request belongs to: named in its path, in `x-rolltap-session`, or sent as its API key.

    None for a request without a session, which the server's keys must open. Raises `NotFound` for an unknown one; a
    key in the form of a session's id is taken for one that has ended, lest its requests go on unrecorded.
    """
    sessions = request.app[SESSIONS]
    named = request.match_info.get("sid") or request.headers.get("x-rolltap-session")
    if named:
        return sessions.get(named)
    sent = credentials(request)
    for key in sent:
        if key in sessions:
            return sessions.get(key)
    if not _has_key(request):
        for key in filter(_SESSION_ID.fullmatch, sent):
            return sessions.get(key)
    require_key(request)
    return None


def _has_key(request: web.Request) -> bool:
    sent = [key.encode() for key in credentials(request)]
    keys = request.app[CONFIG].server.api_keys
    return any(hmac.compare_digest(key.encode(), candidate) for key in keys for candidate in sent)
