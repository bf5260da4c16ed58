"""The dialect "openai.responses"."""

from typing import Any

from aiohttp import web

import rolltap
from rolltap import (
    ChatRequest,
    Completion,
    ErrorInfo,
    ErrorReply,
    MessageConverter,
    Replies,
    Server,
    StreamEncoder,
    hookimpl,
)
from rolltap_plugins.openai_dialects.replies import error_reply
from rolltap_plugins.openai_dialects.responses import compact
from rolltap_plugins.openai_dialects.responses.compact import CompactConverter
from rolltap_plugins.openai_dialects.responses.kept import KeptReplies
from rolltap_plugins.openai_dialects.responses.references import resolved
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

    def decode_within(self, body: dict[str, Any], replies: Replies) -> ChatRequest:
        """See `MessageConverter.decode_within`: items named by their ids are those that the session gave."""
        return decode(resolved(body, replies))

    def encode_count(self, num_tokens: int) -> dict[str, Any]:
        """See `MessageConverter.encode_count`."""
        return {"object": "response.input_tokens", "input_tokens": num_tokens}

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
    """The converters for "openai.responses" and its compactions."""
    known: dict[str, type[MessageConverter]] = {
        DIALECT: ResponsesConverter,
        compact.DIALECT: CompactConverter,
    }
    return known[dialect]() if dialect in known else None


@hookimpl
def register_routes(app: web.Application, server: Server) -> None:
    """POST /v1/responses and what belongs to it, GET and DELETE for replies that were kept."""
    rolltap.add_dialect(app, DIALECT, "/v1/responses", count_path="/v1/responses/input_tokens")
    rolltap.add_dialect(app, compact.DIALECT, "/v1/responses/compact")
    KeptReplies(server).add_routes()


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"message_converter": [DIALECT, compact.DIALECT]}
