"""Exceptions as answers: in the caller's dialect where its route has one, else in rolltap's own words."""

import json
import logging
from secrets import token_hex
from typing import Any

import msgspec
import orjson
from aiohttp import web

from rolltap.bases.converters import MessageConverter
from rolltap.bases.server import Handler
from rolltap.errors import ErrorInfo, PluginError, RequestError
from rolltap.server.converters import recognised
from rolltap.server.hints import hint
from rolltap.server.state import CONFIG, PIPELINE, REQUEST_ID

log = logging.getLogger(__name__)

_HINTED = frozenset({"not_found", "method_not_allowed", "session_not_found"})
"""Errors that may come of a path which is spelled another way here."""
_HTTP_TYPES = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


def new_request_id() -> str:
    """An id for a request, sent back as `x-request-id`."""
    return f"req_{token_hex(16)}"


def json_response(body: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON answer."""
    try:
        data = orjson.dumps(body)
    except orjson.JSONEncodeError:  # an integer longer than 64 bits
        data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    return web.Response(body=data, status=status, headers=headers, content_type="application/json")


async def error_info(request: web.Request, error: Exception) -> ErrorInfo:
    """What an exception that ended a request means."""
    if isinstance(error, RequestError):
        return error.info
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        limit = request.app[CONFIG].server.max_body_mb
        return ErrorInfo(
            status=413,
            message=f"the body is larger than this server takes: max_body_mb = {limit:g}",
            type="invalid_request_error",
            code="request_too_large",
        )
    if isinstance(error, web.HTTPException):
        return ErrorInfo(
            status=error.status,
            message=_http_message(request, error),
            type="invalid_request_error",
            code=_HTTP_TYPES.get(error.status, error.reason.lower().replace(" ", "_")),
        )
    info = await request.app[PIPELINE].classify(error)
    if info.status == 500:
        log.error("%s %s failed", request.method, request.path, exc_info=error)
    return info


def _http_message(request: web.Request, error: web.HTTPException) -> str:
    if isinstance(error, web.HTTPMethodNotAllowed):
        return f"{request.path} takes {', '.join(sorted(error.allowed_methods))}, not {request.method}"
    if error.status == 404:
        return f"there is nothing at {request.path}"
    return error.text or error.reason


def error_headers(info: ErrorInfo) -> dict[str, str]:
    """What the headers of every dialect's errors say."""
    headers = {}
    if info.retry_after is not None:
        headers["retry-after"] = f"{info.retry_after:g}"
    if info.should_retry is not None:
        headers["x-should-retry"] = "true" if info.should_retry else "false"
    return headers


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give every request an id, and turn what no dialect has answered into a JSON error."""
    request[REQUEST_ID] = new_request_id()
    try:
        return await handler(request)
    except Exception as error:
        if isinstance(error, web.HTTPException) and error.status < 400:
            raise
        info = await error_info(request, error)
        if info.status in {404, 405} and info.code in _HINTED:
            info = msgspec.structs.replace(info, message=info.message + await hint(request))
        headers = error_headers(info)
        if isinstance(error, web.HTTPMethodNotAllowed):
            headers["allow"] = ", ".join(sorted(error.allowed_methods))
        converter = await _client_s_own(request)
        if converter is not None:
            reply = converter.error(info, request[REQUEST_ID])
            return json_response(reply.body, status=reply.status, headers={**headers, **reply.headers})
        body = {"message": info.message, "type": info.type, "code": info.code, "param": info.param}
        return json_response({"error": body}, status=info.status, headers=headers)


async def _client_s_own(request: web.Request) -> MessageConverter | None:
    """The converter of the dialect that the client speaks, where that can be told."""
    try:
        return await recognised(request)
    except PluginError:
        log.exception("%s %s: the client's dialect can't be told", request.method, request.path)
        return None


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Signal `on_response_prepare`: name the request in every answer; end a connection on which it was damaged."""
    damaged = request.content.exception() is not None
    if damaged or response.status == 408:
        # What follows a body that is damaged or broken off can't be told from it.
        response.force_close()
        response.headers["connection"] = "close"
    if damaged:
        request.content.feed_eof()  # declared here, lest aiohttp look for it and log what it finds
    for name in ("x-request-id", "request-id"):  # OpenAI's clients read the one, Anthropic's the other
        response.headers.setdefault(name, request.get(REQUEST_ID, ""))
