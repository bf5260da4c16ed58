"""The routes that belong to no wire format: health, models, sessions and their nodes."""

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson
from aiohttp import web

from rolltap.errors import BadRequest
from rolltap.exporting import OFF_LOOP_TOKENS
from rolltap.models import Model
from rolltap.server import exports
from rolltap.server.access import is_known, require_key, session_of
from rolltap.server.converters import recognised
from rolltap.server.dialects import read_json
from rolltap.server.errors import json_response
from rolltap.server.queries import one_of, whole_number
from rolltap.server.state import MODELS, PIPELINE, PLUGINS, SERVER, SESSIONS
from rolltap.session_settings import check_pins, new_info, session_request
from rolltap.types.ledger import SessionSummary
from rolltap.types.nodes import NodeView


def add_routes(app: web.Application) -> None:
    """Add the core's own routes."""
    app.router.add_get("/health", health)
    app.router.add_get("/ready", ready)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/{sid}/v1/models", models)
    app.router.add_get("/v1/models/{name:.+}", model)
    app.router.add_get("/{sid}/v1/models/{name:.+}", model)
    app.router.add_post("/sessions/create", create_session)
    app.router.add_get("/sessions", list_sessions)
    app.router.add_get("/sessions/export", exports.export_sessions)
    app.router.add_get("/{sid}/nodes", nodes)
    app.router.add_get("/{sid}", describe_session, allow_head=False)
    app.router.add_delete("/{sid}", delete_session)
    app.router.add_head("/", alive)
    app.router.add_head("/{sid}", alive)


async def alive(request: web.Request) -> web.Response:
    """`HEAD /` and `HEAD /{sid}`: some clients look whether anybody is there before they ask."""
    if "sid" in request.match_info:
        await session_of(request)
    return web.Response()


async def ready(request: web.Request) -> web.Response:
    """`GET /ready`: 200; 503 while the server drains, or while a model has no healthy backend."""
    app = request.app
    stuck = [model.name for model in app[MODELS] if not any(handle.view.healthy for handle in model.backends)]
    if app[PIPELINE].draining or stuck:
        reason = "draining" if app[PIPELINE].draining else f"no healthy backend: {', '.join(stuck)}"
        return json_response({"status": "not ready", "reason": reason}, status=503)
    return json_response({"status": "ready"})


async def health(request: web.Request) -> web.Response:
    """Whether the server is well, and what of it is not; without a key, where there are some, only that it lives."""
    app = request.app
    if not is_known(request):
        return json_response({"status": "ok", "model": app[MODELS].default.name})
    backends = [
        {
            "model": model.name,
            "name": handle.name,
            "plugin": handle.plugin,
            "healthy": handle.view.healthy,
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
            "store": {
                "failures": app[SESSIONS].counts["store_failures"],
                "last_failure": app[SESSIONS].last_failure,
            },
            "plugin_failures": app[PLUGINS].failures,
            "plugin_blocking": app[PLUGINS].blocked,
            "plugins_failed": {
                record.name: record.error for record in app[PLUGINS].records if record.error is not None
            },
        }
    )


async def models(request: web.Request) -> web.Response:
    """The configured models, as the client's dialect lists them, else as OpenAI does."""
    await session_of(request)
    known = [*request.app[MODELS]]
    converter = await recognised(request)
    listed = converter.encode_models([each.name for each in known]) if converter is not None else None
    return json_response(listed or {"object": "list", "data": [_card(each) for each in known]})


async def model(request: web.Request) -> web.Response:
    """One of them by its name, which may have slashes."""
    await session_of(request)
    found = request.app[MODELS][request.match_info["name"]]
    converter = await recognised(request)
    told = converter.encode_model(found.name) if converter is not None else None
    return json_response(told or _card(found))


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
    return json_response(_described(session.summary(), _CREATED))


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


_CREATED = ("uuid", "model_name", "tool_parser", "base_url", "created_at")
_LISTED = (
    *_CREATED,
    "last_accessed",
    "num_nodes",
    "num_calls",
    "num_tokens",
    "group",
    "labels",
    "state",
    "in_flight",
)


def _described(summary: SessionSummary, names: Sequence[str]) -> dict[str, Any]:
    found = {name: getattr(summary, name) for name in names}
    if summary.incomplete:
        found["incomplete"] = summary.incomplete
    if summary.rewards:
        found["reward"], found["rewards"] = summary.reward, summary.rewards
    return found


async def list_sessions(request: web.Request) -> web.Response:
    """`GET /sessions`, with `?group=`, `?state=`, `?after=` and `?limit=`."""
    require_key(request)
    query = request.query
    state = query.get("state", "")
    if state not in {"", "open", "sealed"}:
        raise BadRequest(f"state={state!r}: it is 'open' or 'sealed'", param="state")
    limit = whole_number(query, "limit")
    found = [
        summary
        async for summary in request.app[SESSIONS].page(
            group=query.get("group", ""), state=state, after=query.get("after", ""), limit=limit
        )
    ]
    more = limit is not None and len(found) == limit
    return json_response(
        {
            "sessions": [_described(summary, _LISTED) for summary in found],
            "next": found[-1].cursor if more else None,
        }
    )


async def describe_session(request: web.Request) -> web.Response:
    """`GET /{sid}`: what `GET /sessions` says of it, and the settings that are its own."""
    session = await request.app[SESSIONS].get(request.match_info["sid"])
    return json_response(_described(session.summary(), (*_LISTED, "track_tree", "sampling", "metadata")))


async def delete_session(request: web.Request) -> web.Response:
    """`DELETE /{sid}`."""
    uuid = request.match_info["sid"]
    await request.app[SESSIONS].delete(uuid)
    return json_response({"status": "deleted", "uuid": uuid})


async def nodes(request: web.Request) -> web.Response:
    """`GET /{sid}/nodes`: what the session has recorded.

    `?mask=all` shows every generated token unmasked; `?after=` gives only the nodes recorded after that one;
    `?lineage=` those of trees of that label; `?messages=true` adds the conversation and its tools, `?versions=token` the
    version of the weights for each token. `?format=` gives rows in a trainer's shape instead.
    """
    query = request.query
    mask = one_of(query, "mask", ("owned", "all"))
    messages = one_of(query, "messages", ("false", "true")) == "true"
    versions = one_of(query, "versions", ("spans", "token")) == "token"
    if mask == "all" and "format" in query:
        raise BadRequest(
            "mask=all shows tokens that another row trains, or none may: it does not go with format",
            param="mask",
        )
    seen = await request.app[SERVER].nodes(
        request.match_info["sid"],
        mask="all" if mask == "all" else "owned",
        after=query.get("after"),
        lineage=query.get("lineage") if "format" not in query else None,
    )
    if "format" in query:
        return await exports.rows(request, seen)
    if sum(node.num_tokens for node in seen) > OFF_LOOP_TOKENS:
        body = await asyncio.to_thread(_encoded, seen, messages=messages, versions=versions)
    else:
        body = _encoded(seen, messages=messages, versions=versions)
    return web.Response(body=body, content_type="application/json")


def _encoded(seen: Sequence[NodeView], *, messages: bool, versions: bool) -> bytes:
    return orjson.dumps({"nodes": [_node(node, messages=messages, versions=versions) for node in seen]})


def _node(node: NodeView, *, messages: bool, versions: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "full_text": node.full_text,
        "tokens": node.tokens,
        "masked_tokens": node.masked_tokens,
        "logprobs": node.logprobs,
        "metadata": node.metadata,
    }
    if messages:
        found["messages"], found["tools"] = node.messages, node.tools
    if versions:
        found["versions"] = node.versions
    return found
