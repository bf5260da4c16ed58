"""`/admin/…`: pauses, resumes and versions of the weights, for trainers. An api key is needed where keys are set."""

from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from rolltap.bases.backends import PauseMode
from rolltap.server.access import require_key
from rolltap.server.dialects import read_json
from rolltap.server.errors import json_response
from rolltap.server.state import MODELS, PIPELINE
from rolltap.session_settings import converted
from rolltap.weights import Told


class _Pause(Struct, forbid_unknown_fields=True):
    mode: PauseMode = "abort"


class _Resume(Struct, forbid_unknown_fields=True):
    version: int | str | None = None


class _Weights(Struct, forbid_unknown_fields=True):
    version: int | str
    path: str | None = None
    model: str = ""


def add_admin_routes(app: web.Application) -> None:
    """Add them."""
    app.router.add_post("/admin/pause", pause)
    app.router.add_post("/admin/resume", resume)
    app.router.add_post("/admin/weights", weights)
    app.router.add_get("/admin/state", state)


async def pause(request: web.Request) -> web.Response:
    """`POST /admin/pause {mode}`: calls wait from now on, and every engine is paused."""
    require_key(request)
    wanted = converted(await _body(request), _Pause)
    return _answer(request, await request.app[PIPELINE].updates.pause(wanted.mode))


async def resume(request: web.Request) -> web.Response:
    """`POST /admin/resume {version?}`: every engine is resumed, and once all are, calls go on."""
    require_key(request)
    wanted = converted(await _body(request), _Resume)
    return _answer(request, await request.app[PIPELINE].updates.resume(wanted.version))


async def weights(request: web.Request) -> web.Response:
    """`POST /admin/weights {version, path?, model?}`: from now on the weights are of this version."""
    require_key(request)
    wanted = converted(await _body(request), _Weights)
    if wanted.model:
        request.app[MODELS][wanted.model]
    told = await request.app[PIPELINE].updates.set_version(
        wanted.version, path=wanted.path, model=wanted.model
    )
    return _answer(request, told, needed=True)


async def state(request: web.Request) -> web.Response:
    """`GET /admin/state`."""
    require_key(request)
    return json_response(request.app[PIPELINE].updates.state())


async def _body(request: web.Request) -> dict[str, Any]:
    return await read_json(request) if request.can_read_body else {}


def _answer(request: web.Request, told: Sequence[Told], *, needed: bool = False) -> web.Response:
    """The state, and what each engine said: a 502 where one that can do it did not.

    `needed`: also where one can't do it at all, since the weights would not be what was asked for.
    """
    failed = [each for each in told if not each.ok and (needed or each.supported)]
    body = {**request.app[PIPELINE].updates.state(), "engines": msgspec.to_builtins(told)}
    if failed:
        names = "; ".join(f"{each.name} of {each.model}: {each.error}" for each in failed)
        body["error"] = {
            "message": f"not every engine did it: {names}",
            "type": "server_error",
            "code": "engine_failed",
            "param": None,
        }
    return json_response(body, status=502 if failed else 200)
