"""Who may do what: sessions by their ids, everything else by the server's keys.

A session's id is a capability: whoever knows it may use that session. The configured `api_keys` open what belongs to
no session: creating and listing sessions, and requests without one.
"""

import hmac

from aiohttp import web

from rolltap.errors import ErrorInfo, RequestError
from rolltap.server.state import CONFIG, SESSIONS
from rolltap.sessions import Session


def credentials(request: web.Request) -> list[str]:
    """The keys that the client sent, as a bearer token or as `x-api-key`."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    sent = [token.strip()] if scheme.lower() == "bearer" else []
    return [key for key in (*sent, request.headers.get("x-api-key", "")) if key]


def require_key(request: web.Request) -> None:
    """Let the request through if the server has no keys or the client sent one. Raises `RequestError` (401)."""
    keys = request.app[CONFIG].server.api_keys
    if not keys:
        return
    sent = [key.encode() for key in credentials(request)]
    if any(hmac.compare_digest(key.encode(), candidate) for key in keys for candidate in sent):
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

    None for a request without a session, which the server's keys must open. Raises `NotFound` for an unknown one.
    """
    sessions = request.app[SESSIONS]
    named = request.match_info.get("sid") or request.headers.get("x-rolltap-session")
    if named:
        return sessions.get(named)
    for key in credentials(request):
        if key in sessions:
            return sessions.get(key)
    require_key(request)
    return None
