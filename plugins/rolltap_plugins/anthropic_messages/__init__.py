"""The dialect "anthropic.messages"."""

from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

import rolltap
from rolltap import (
    BadRequest,
    ChatRequest,
    Completion,
    ErrorInfo,
    ErrorReply,
    MessageConverter,
    ReadBefore,
    Replies,
    StreamEncoder,
    hookimpl,
)
from rolltap_plugins.anthropic_messages.lenient import readable
from rolltap_plugins.anthropic_messages.replies import MessageStream, error_reply, message
from rolltap_plugins.anthropic_messages.requests import decode

DIALECT = "anthropic.messages"


class AnthropicConverter(MessageConverter):
    """Messages in and out."""

    dialect = DIALECT
    id_prefix = "msg_"

    def decode(self, body: dict[str, Any]) -> ChatRequest:
        """See `MessageConverter.decode`. A parameter without a name here goes to the backend in `extra`."""
        return decode(body)

    def decode_next(self, body: dict[str, Any], replies: Replies, before: ReadBefore) -> ChatRequest:  # noqa: ARG002
        """See `MessageConverter.decode_next`. Messages that are known are not read again."""
        try:
            return decode(body, before=before)
        except BadRequest:
            return decode(body)  # whose error names the message by its place

    def decode_leniently(self, body: dict[str, Any]) -> ChatRequest:
        """See `MessageConverter.decode_leniently`."""
        return decode(readable(body), may_be_empty=True)

    def encode(self, request: ChatRequest, completion: Completion) -> dict[str, Any]:
        """See `MessageConverter.encode`."""
        return message(request, completion)

    def stream(self, request: ChatRequest, completion: Completion) -> StreamEncoder:
        """See `MessageConverter.stream`."""
        return MessageStream(request, completion)

    def encode_count(self, num_tokens: int) -> dict[str, Any]:
        """See `MessageConverter.encode_count`."""
        return {"input_tokens": num_tokens}

    def recognises(self, path: str, headers: Mapping[str, str]) -> bool:  # noqa: ARG002 - its paths are also OpenAI's
        """See `MessageConverter.recognises`: its clients name the version of the API that they speak."""
        return "anthropic-version" in headers

    def encode_models(self, names: Sequence[str]) -> dict[str, Any]:
        """See `MessageConverter.encode_models`. All fit on one page."""
        first, last = (names[0], names[-1]) if names else (None, None)
        cards = [self.encode_model(name) for name in names]
        return {"data": cards, "has_more": False, "first_id": first, "last_id": last}

    def encode_model(self, name: str) -> dict[str, Any]:
        """See `MessageConverter.encode_model`."""
        return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}

    def error(self, info: ErrorInfo, request_id: str) -> ErrorReply:
        """See `MessageConverter.error`."""
        return error_reply(info, request_id)


@hookimpl
def message_converter(dialect: str) -> MessageConverter | None:
    """The converter for "anthropic.messages"."""
    return AnthropicConverter() if dialect == DIALECT else None


@hookimpl
def register_routes(app: web.Application) -> None:
    """POST /v1/messages and /v1/messages/count_tokens."""
    rolltap.add_dialect(app, DIALECT, "/v1/messages", count_path="/v1/messages/count_tokens")


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"message_converter": [DIALECT]}
