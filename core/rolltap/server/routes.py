"""The routes that belong to no wire format: health, models, sessions and their nodes."""

import asyncio
from typing import Any

import orjson
from aiohttp import web

from rolltap.errors import BadRequest
from rolltap.models import Model
from rolltap.record.views import RecordedNode, views
from rolltap.server.access import require_key, session_of
from rolltap.server.dialects import read_json
from rolltap.server.errors import json_response
from rolltap.server.state import MODELS, PIPELINE, PLUGINS, SESSIONS
from rolltap.session_settings import check_pins, new_info, session_request
from rolltap.sessions import Session

_OFF_LOOP_TOKENS = 20_000
"""Nodes of more tokens than this are decoded and encoded in a thread."""


def add_routes(app: web.Application) -> None:
    """Add the core's own routes."""
    app.router.add_get("/health", health)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/{sid}/v1/models", models)
    app.router.add_get("/v1/models/{name:.+}", model)
    app.router.add_get("/{sid}/v1/models/{name:.+}", model)
    app.router.add_post("/sessions/create", create_session)
    app.router.add_get("/sessions", list_sessions)
    app.router.add_get("/{sid}/nodes", nodes)
    app.router.add_get("/{sid}", describe_session, allow_head=False)
    app.router.add_delete("/{sid}", delete_session)
    app.router.add_head("/", alive)
    app.router.add_head("/{sid}", alive)


async def alive(request: web.Request) -> web.Response:
    """`HEAD /` and `HEAD /{sid}`: some clients look whether anybody is there before they ask."""
    if "sid" in request.match_info:
        session_of(request)
    return web.Response()


async def health(request: web.Request) -> web.Response:
    """Whether the server is well, and what of it is not."""
    app = request.app
    backends = [
        {
            "model": model.name,
            "name": handle.name,
            "plugin": handle.plugin,
            "healthy": handle.healthy,
            "in_flight": handle.in_flight,
            "last_error": handle.last_error,
        }
        for model in app[MODELS]
        for handle in model.backends
    ]
    return json_response(
        {
            "status": "ok",
            "model": app[MODELS].default.name,
            "sessions": len(app[SESSIONS]),
            "backends": backends,
            "record": {
                name: app[PIPELINE].counts[name] for name in ("nodes", "untrainable", "drifted", "aborted")
            },
            "plugin_failures": app[PLUGINS].failures,
            "plugin_blocking": app[PLUGINS].blocked,
            "plugins_failed": {
                record.name: record.error for record in app[PLUGINS].records if record.error is not None
            },
        }
    )


async def models(request: web.Request) -> web.Response:
    """The configured models, as OpenAI lists them."""
    session_of(request)
    return json_response({"object": "list", "data": [_card(model) for model in request.app[MODELS]]})


async def model(request: web.Request) -> web.Response:
    """One of them by its name, which may have slashes."""
    session_of(request)
    return json_response(_card(request.app[MODELS][request.match_info["name"]]))


def _card(model: Model) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": 0, "owned_by": "rolltap"}


async def create_session(request: web.Request) -> web.Response:
    """`POST /sessions/create`."""
    require_key(request)
    body = await read_json(request) if request.can_read_body else {}
    wanted = session_request(body)
    model = request.app[MODELS][wanted.model or ""]
    check_pins(wanted.sampling, model.candidates(wanted.base_url))
    tool_parser = wanted.tool_parser if wanted.tool_parser is not None else model.config.tool_parser
    await _check_tool_parser(request, tool_parser)
    info = new_info(wanted, model=model.name, tool_parser=tool_parser, base_url=wanted.base_url)
    session = await request.app[SESSIONS].create(info)
    return json_response(_described(session, "uuid", "model_name", "tool_parser", "base_url", "created_at"))


async def _check_tool_parser(request: web.Request, name: str) -> None:
    if not name:
        return
    plugins = request.app[PLUGINS]
    found = await plugins.call_first("tool_parser", name=name, tools=[], tokenizer=None)
    if found is None:
        raise BadRequest(
            f"no plugin offers the tool parser {name!r}{plugins.hint('tool_parser', name)}; "
            "`rolltap plugins` shows what is loaded",
            param="tool_parser",
        )


def _described(session: Session, *names: str) -> dict[str, Any]:
    return {name: getattr(session.info, name) for name in names}


def _listed(session: Session) -> dict[str, Any]:
    return {
        **_described(session, "uuid", "model_name", "tool_parser", "base_url", "created_at"),
        "last_accessed": session.last_accessed,
        "num_nodes": len(session.forest) if session.info.track_tree else len(session.forest.leaves()),
    }


async def list_sessions(request: web.Request) -> web.Response:
    """`GET /sessions`."""
    require_key(request)
    return json_response({"sessions": [_listed(session) for session in request.app[SESSIONS]]})


async def describe_session(request: web.Request) -> web.Response:
    """`GET /{sid}`: what `GET /sessions` says of it, and the settings that are its own."""
    session = request.app[SESSIONS].get(request.match_info["sid"])
    return json_response({**_listed(session), **_described(session, "track_tree", "sampling", "metadata")})


async def delete_session(request: web.Request) -> web.Response:
    """`DELETE /{sid}`."""
    uuid = request.match_info["sid"]
    await request.app[SESSIONS].delete(uuid)
    return json_response({"status": "deleted", "uuid": uuid})


async def nodes(request: web.Request) -> web.Response:
    """`GET /{sid}/nodes`: what the session has recorded; `?mask=all` shows every generated token unmasked."""
    session = request.app[SESSIONS].get(request.match_info["sid"])
    mask = request.query.get("mask", "owned")
    if mask not in {"owned", "all"}:
        raise BadRequest(f"mask={mask!r}: it is 'owned' (the default) or 'all'", param="mask")
    decode = request.app[MODELS][session.info.model_name].decode
    seen = views(session.forest, tree=session.info.track_tree, unmask=mask == "all", decode=decode)
    if sum(node.num_tokens for node in seen) > _OFF_LOOP_TOKENS:
        body = await asyncio.to_thread(_encoded, seen)
    else:
        body = _encoded(seen)
    return web.Response(body=body, content_type="application/json")


def _encoded(seen: list[RecordedNode]) -> bytes:
    return orjson.dumps({"nodes": [node.to_dict() for node in seen]})
