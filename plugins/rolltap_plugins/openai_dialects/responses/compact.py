"""The dialect "openai.responses.compact": a conversation in, a summary of it out, which later requests begin with.

The summary is the model's own: a call like any other, recorded as one.
"""

from typing import Any

import msgspec

from rolltap import ChatRequest, Completion, ErrorInfo, ErrorReply, MessageConverter, Replies, StreamEncoder
from rolltap_plugins.openai_dialects.replies import error_reply
from rolltap_plugins.openai_dialects.responses.references import resolved
from rolltap_plugins.openai_dialects.responses.replies import item_id, usage
from rolltap_plugins.openai_dialects.responses.requests import decode
from rolltap_plugins.openai_dialects.responses.sealed import SUMMARY, sealed
from rolltap_plugins.openai_dialects.responses.streams import ResponseStream
from rolltap_plugins.wire import refused

DIALECT = "openai.responses.compact"

_ASKED = (
    "Summarize our conversation so far, so that the work can go on from your summary alone: what was asked, what was "
    "found out and decided, which files and names matter, what is done and what is left. Answer with the summary alone."
)


class CompactConverter(MessageConverter):
    """Compactions in and out; never streamed."""

    dialect = DIALECT
    id_prefix = "resp_"

    def decode(self, body: dict[str, Any]) -> ChatRequest:
        """See `MessageConverter.decode`: the conversation, and the question for its summary."""
        if body.get("stream"):
            raise refused("stream", "is not supported: a compaction is one item.")
        if body.get("input") is None and body.get("previous_response_id"):
            body = {**body, "input": []}
        asked = {"role": "user", "content": _ASKED}
        items = body.get("input")
        if isinstance(items, str):
            items = [{"role": "user", "content": items}]
        if isinstance(items, list):
            items = [*items, asked]
        request = decode({**body, "input": items})
        return msgspec.structs.replace(request, keep=False, tools=())

    def decode_within(self, body: dict[str, Any], replies: Replies) -> ChatRequest:
        """See `MessageConverter.decode_within`."""
        return self.decode(resolved(body, replies))

    def encode(self, request: ChatRequest, completion: Completion) -> dict[str, Any]:  # noqa: ARG002
        """See `MessageConverter.encode`: one item, which clients send back unread."""
        summary = completion.choices[0].text if completion.choices else ""
        item = {
            "id": item_id(completion.id, "cmp", 0),
            "type": "compaction",
            "encrypted_content": sealed({SUMMARY: summary}),
        }
        return {
            "id": completion.id,
            "object": "response.compaction",
            "created_at": completion.created,
            "output": [item],
            "usage": usage(completion.usage),
        }

    def stream(self, request: ChatRequest, completion: Completion) -> StreamEncoder:
        """See `MessageConverter.stream`; nobody asks for one."""
        return ResponseStream(request, completion)

    def error(self, info: ErrorInfo, request_id: str) -> ErrorReply:
        """See `MessageConverter.error`."""
        return error_reply(info, request_id)
