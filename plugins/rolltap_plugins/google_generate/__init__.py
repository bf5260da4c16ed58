"""The dialect "google.generate_content": Google's generateContent, streamGenerateContent and countTokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

import rolltap
from rolltap import (
    ChatRequest,
    Completion,
    ErrorInfo,
    ErrorReply,
    MessageConverter,
    Server,
    StreamEncoder,
    hookimpl,
)
from rolltap_plugins.google_generate.replies import GenerateArray, GenerateStream, error_reply, reply
from rolltap_plugins.google_generate.requests import State, decode

DIALECT = "google.generate_content"
_VERSIONS = ("/v1beta", "/v1")
"""Google's clients ask for the one or the other."""
_CARD = "/v1beta/models/{model:(?!.*:[a-z]+[A-Z]).+}"
"""A model's own path: a method's name behind it is another thing."""


class GoogleConverter(MessageConverter):
    """Contents in, candidates out."""

    dialect = DIALECT

    def decode(self, body: dict[str, Any]) -> ChatRequest:
        """See `MessageConverter.decode`. What stands in the path, the model and whether to stream, is in the body."""
        return decode(body)

    def encode(self, request: ChatRequest, completion: Completion) -> dict[str, Any]:
        """See `MessageConverter.encode`."""
        return reply(request, completion)

    def stream(self, request: ChatRequest, completion: Completion) -> StreamEncoder:
        """See `MessageConverter.stream`."""
        as_events = not isinstance(request.state, State) or request.state.sse
        return (GenerateStream if as_events else GenerateArray)(request, completion)

    def encode_count(self, num_tokens: int) -> dict[str, Any]:
        """See `MessageConverter.encode_count`."""
        return {"totalTokens": num_tokens}

    def recognises(self, path: str, headers: Mapping[str, str]) -> bool:
        """See `MessageConverter.recognises`."""
        return "/v1beta/" in path or "x-goog-api-client" in headers or "x-goog-api-key" in headers

    def encode_models(self, names: Sequence[str]) -> dict[str, Any]:
        """See `MessageConverter.encode_models`."""
        return _cards(names)

    def encode_model(self, name: str) -> dict[str, Any]:
        """See `MessageConverter.encode_model`."""
        return _card(name)

    def error(self, info: ErrorInfo, request_id: str) -> ErrorReply:  # noqa: ARG002 - Google's form has no place for it
        """See `MessageConverter.error`."""
        return error_reply(info)


@hookimpl
def message_converter(dialect: str) -> MessageConverter | None:
    """The converter for "google.generate_content"."""
    return GoogleConverter() if dialect == DIALECT else None


@hookimpl
def register_routes(app: web.Application, server: Server) -> None:
    """The methods of a model, and the list of models, as Google's clients ask for it."""
    for version in _VERSIONS:
        model_path = f"{version}/models/{{model:.+}}"
        rolltap.add_dialect(
            app, DIALECT, f"{model_path}:generateContent", count_path=f"{model_path}:countTokens"
        )
        rolltap.add_dialect(
            app, DIALECT, f"{model_path}:streamGenerateContent", fields={"stream": True}, query=("alt",)
        )

    async def models(request: web.Request) -> web.Response:  # noqa: ARG001 - all may see all
        return web.json_response(_cards(server.models))

    async def model(request: web.Request) -> web.Response:
        name = request.match_info["model"]
        if name not in server.models:
            message = f"model {name!r} is not configured; this server has: {', '.join(server.models)}"
            answer = error_reply(ErrorInfo(status=404, message=message, code="model_not_found"))
            return web.json_response(answer.body, status=answer.status)
        return web.json_response(_card(name))

    for prefix in ("", "/{sid}"):
        server.add_route("GET", f"{prefix}/v1beta/models", models, public=bool(prefix))
        server.add_route("GET", f"{prefix}{_CARD}", model, public=bool(prefix))


def _cards(names: Sequence[str]) -> dict[str, Any]:
    return {"models": [_card(name) for name in names]}


def _card(name: str) -> dict[str, Any]:
    methods = ["generateContent", "streamGenerateContent", "countTokens"]
    return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": methods}


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"message_converter": [DIALECT]}
