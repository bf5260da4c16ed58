"""The dialect "openai.responses"."""

from typing import Any

from aiohttp import web

import rolltap
from rolltap import ChatRequest, Completion, ErrorInfo, ErrorReply, MessageConverter, StreamEncoder, hookimpl
from rolltap_plugins.openai_dialects.replies import error_reply
from rolltap_plugins.openai_dialects.responses.replies import response
from rolltap_plugins.openai_dialects.responses.requests import decode
from rolltap_plugins.openai_dialects.responses.streams import ResponseStream

DIALECT = "openai.responses"


class ResponsesConverter(MessageConverter):
    """Responses in and out."""

    dialect = DIALECT
    id_prefix = "resp_"

    def decode(self, body: dict[str, Any]) -> ChatRequest:
        """See `MessageConverter.decode`. A parameter without a name here goes to the backend in `extra`."""
        return decode(body)

    def encode(self, request: ChatRequest, completion: Completion) -> dict[str, Any]:
        """See `MessageConverter.encode`."""
        return response(request, completion)

    def stream(self, request: ChatRequest, completion: Completion) -> StreamEncoder:
        """See `MessageConverter.stream`."""
        return ResponseStream(request, completion)

    def error(self, info: ErrorInfo, request_id: str) -> ErrorReply:
        """See `MessageConverter.error`."""
        return error_reply(info, request_id)


@hookimpl
def message_converter(dialect: str) -> MessageConverter | None:
    """The converter for "openai.responses"."""
    return ResponsesConverter() if dialect == DIALECT else None


@hookimpl
def register_routes(app: web.Application) -> None:
    """POST /v1/responses."""
    rolltap.add_dialect(app, DIALECT, "/v1/responses")


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"message_converter": [DIALECT]}
