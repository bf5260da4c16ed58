"""Who may do what: sessions by their ids, everything else by the server's keys.

A session's id is a capability: whoever knows it may use that session. The configured `api_keys` open what belongs to
no session: creating and listing sessions, and requests without one.
"""

import re

from aiohttp import web

from rolltap.bases.server import Handler
from rolltap.call import Unrecorded
from rolltap.errors import ErrorInfo, NotFound, RequestError
from rolltap.server.hints import doubled
from rolltap.server.state import GUARDED, KEYS, SESSIONS
from rolltap.session import Session

_SESSION_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def credentials(request: web.Request) -> list[str]:
    """The keys that the client sent: as a bearer token, as `x-api-key`, or as Google's clients do."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    sent = [token.strip()] if scheme.lower() == "bearer" else []
    sent += [request.headers.get(name, "") for name in ("x-api-key", "x-goog-api-key")]
    return [key for key in (*sent, request.query.get("key", "")) if key]


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Ask for a key where a plugin's route needs one."""
    if request.match_info.route.resource in request.app[GUARDED]:
        require_key(request)
    return await handler(request)


def is_known(request: web.Request) -> bool:
    """Whether the server has no keys, or the client sent one."""
    keys = request.app[KEYS]
    return not keys or keys.opened_by(credentials(request))


def require_key(request: web.Request) -> None:
    """Let the request through if the server has no keys or the client sent one. Raises `RequestError` (401)."""
    if is_known(request):
        return
    raise RequestError(
        ErrorInfo(
            status=401,
            message="this server needs one of its api_keys, as `Authorization: Bearer KEY` or `x-api-key: KEY`",
            type="authentication_error",
            code="invalid_api_key",
        )
    )


async def session_of(request: web.Request) -> Session | Unrecorded:
    """The session a request belongs to: named in its path, in `x-rolltap-session`, or sent as its API key.

    A request without a session, which the server's keys must open, has one that records nothing. Raises `NotFound` for
    an unknown one; a key in the form of a session's id is taken for one that has ended, lest its requests go on
    unrecorded.
    """
    sessions = request.app[SESSIONS]
    if meant := doubled(request):
        raise NotFound(
            f"there is nothing at {request.path}: it begins with /v1 twice; did you mean {meant}? The client adds /v1 itself"
        )
    named = request.match_info.get("sid") or request.headers.get("x-rolltap-session")
    if named:
        return await sessions.get(named)
    if not request.app[KEYS].opened_by(credentials(request)):
        for key in filter(_SESSION_ID.fullmatch, credentials(request)):
            return await sessions.get(key)
    require_key(request)
    return Unrecorded()
