"""Replies of the Messages API, plain and streamed, and its errors."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal, cast

import orjson

from rolltap import ChatDelta, ChatRequest, Choice, Completion, ErrorInfo, ErrorReply, StreamEncoder, ToolCall
from rolltap_plugins.anthropic_messages.blocks import kept_block
from rolltap_plugins.anthropic_messages.overflow import context_message
from rolltap_plugins.anthropic_messages.requests import IN_PROCESS
from rolltap_plugins.wire import event_frame, retry_headers

SIGNATURE = "cm9sbHRhcA=="
"""What stands where Anthropic signs its thinking: clients send it back unread."""

_LONG_INTEGER = re.compile(r"\d{19}")
"""Where an integer may be longer than 64 bits, of which orjson makes a float."""

_WANTED_BACK = re.compile(r"reasoning|thinking|thought|extra_content|provider_specific")
"""Which of the further fields of an upstream's message are more than news: those that hold its thinking."""

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_STATUSES = {422: 400, 503: 529}
"""Where Anthropic has another status for the same thing."""


def message(request: ChatRequest, completion: Completion) -> dict[str, Any]:
    """The body of a plain reply; one without any choice is an empty turn."""
    choice = completion.choices[0] if completion.choices else Choice()
    content: list[dict[str, Any]] = []
    if choice.reasoning and _shows_thinking(request):
        content.append({"type": "thinking", "thinking": choice.reasoning, "signature": SIGNATURE})
    if choice.text:
        content.append({"type": "text", "text": choice.text})
    content += _kept_blocks(choice)
    content += [block for block, _ in _call_blocks(choice)]
    stop_reason, stop_sequence = _stop(request, choice)
    return {
        **_envelope(completion),
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "usage": {"input_tokens": 0} | _usage(request, completion),
    }


Event = dict[str, Any]


class MessageEvents:
    """A streamed reply as events: one block is open at a time.

    Calls are given whole, by `finish`: their fragments may come interleaved, which blocks must not be, and none is
    of use to a client before the message ends.
    """

    def __init__(self, request: ChatRequest, completion: Completion) -> None:
        self._request = request
        self._completion = completion
        self._shows_thinking = _shows_thinking(request)
        self._open: Literal["text", "thinking"] | None = None
        self._index = -1

    def start(self) -> list[Event]:
        """`message_start`, with how many tokens went in, where that is known before the model has answered."""
        begun = {
            **_envelope(self._completion),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0} | _usage(self._request, self._completion),
        }
        return [{"type": "message_start", "message": begun}]

    def delta(self, delta: ChatDelta) -> list[Event]:
        """The thinking and the text; a message has one choice, whatever a session's `n` is."""
        events: list[Event] = []
        if delta.index:
            return events
        if delta.reasoning and self._shows_thinking:
            events += self._into("thinking")
            events.append(self._delta("thinking_delta", "thinking", delta.reasoning))
        if delta.text:
            events += self._into("text")
            events.append(self._delta("text_delta", "text", delta.text))
        return events

    def finish(self, completion: Completion) -> list[Event]:
        """The calls, why it ended, and the usage."""
        choice = completion.choices[0] if completion.choices else Choice()
        events = self._close()
        for block in _kept_blocks(choice):
            events += [self._start(block), self._stop()]
        for block, text in _call_blocks(choice):
            if block["type"] == "text":
                events += [self._start({**block, "text": ""}), self._delta("text_delta", "text", text)]
            else:
                events.append(self._start({**block, "input": {}}))
                if block["input"]:
                    events.append(self._delta("input_json_delta", "partial_json", text))
            events.append(self._stop())
        stop_reason, stop_sequence = _stop(self._request, choice)
        delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
        events.append({"type": "message_delta", "delta": delta, "usage": _usage(self._request, completion)})
        return [*events, {"type": "message_stop"}]

    def error(self, info: ErrorInfo) -> list[Event]:
        """The error, after which nothing comes."""
        return [{"type": "error", "error": _error(info)}]

    def _into(self, kind: Literal["text", "thinking"]) -> list[Event]:
        """Have a block of this kind open."""
        if self._open == kind:
            return []
        events = self._close()
        self._open = kind
        block = {"type": "text", "text": ""}
        if kind == "thinking":
            block = {"type": "thinking", "thinking": "", "signature": ""}
        return [*events, self._start(block)]

    def _close(self) -> list[Event]:
        if self._open is None:
            return []
        signed = [self._delta("signature_delta", "signature", SIGNATURE)] if self._open == "thinking" else []
        self._open = None
        return [*signed, self._stop()]

    def _start(self, block: dict[str, Any]) -> Event:
        self._index += 1
        return {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, kind: str, key: str, value: str) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": {"type": kind, key: value}}

    def _stop(self) -> Event:
        return {"type": "content_block_stop", "index": self._index}


class MessageStream(StreamEncoder):
    """A streamed reply as bytes."""

    def __init__(self, request: ChatRequest, completion: Completion) -> None:
        self._events = MessageEvents(request, completion)

    def start(self) -> bytes:
        """See `MessageEvents.start`."""
        return _frames(self._events.start())

    def delta(self, delta: ChatDelta) -> bytes:
        """See `MessageEvents.delta`."""
        return _frames(self._events.delta(delta))

    def finish(self, completion: Completion) -> bytes:
        """See `MessageEvents.finish`."""
        return _frames(self._events.finish(completion))

    def error(self, info: ErrorInfo) -> bytes:
        """See `MessageEvents.error`."""
        return _frames(self._events.error(info))

    def ping(self) -> bytes:
        """An event that clients pass over."""
        return _frames([{"type": "ping"}])


def _frames(events: list[Event]) -> bytes:
    return b"".join(map(event_frame, events))


def error_reply(info: ErrorInfo, request_id: str) -> ErrorReply:
    """An error before the first byte of a reply."""
    return ErrorReply(
        status=_STATUSES.get(info.status, info.status),
        body={"type": "error", "error": _error(info), "request_id": request_id},
        headers={"request-id": request_id, "x-request-id": request_id, **retry_headers(info)},
    )


def _error(info: ErrorInfo) -> dict[str, str]:
    kind = _ERROR_TYPES.get(info.status, "invalid_request_error" if info.status < 500 else "api_error")
    return {"type": kind, "message": context_message(info)}


def _shows_thinking(request: ChatRequest) -> bool:
    """A client that switched thinking off expects none, even from a model that can't help it."""
    return request.template_kwargs.get("enable_thinking") is not False


def _envelope(completion: Completion) -> dict[str, Any]:
    return {"id": completion.id, "type": "message", "role": "assistant", "model": completion.model}


def _usage(request: ChatRequest, completion: Completion) -> dict[str, int]:
    """Cumulative counts. How many tokens went in is left out where it is not known; HTTP clients add up the cached ones
    without looking whether they are there.
    """
    usage = completion.usage
    counts = {"output_tokens": usage.completion_tokens}
    if usage.prompt_tokens:
        counts["input_tokens"] = usage.prompt_tokens - (usage.cached_tokens or 0)
    if usage.cached_tokens is not None or request.state is not IN_PROCESS:
        counts["cache_read_input_tokens"] = usage.cached_tokens or 0
    return counts


def _kept_blocks(choice: Choice) -> list[dict[str, Any]]:
    """What the upstream wants to see again, such as signatures: this dialect has no other place for it."""
    kept = {
        "message": {
            name: value for name, value in choice.extra.items() if value and _WANTED_BACK.match(name)
        },
        "calls": {call.id: call.extra for call in choice.tool_calls if call.extra},
    }
    found = {name: value for name, value in kept.items() if value}
    return [kept_block(found)] if found else []


def _call_blocks(choice: Choice) -> Iterator[tuple[dict[str, Any], str]]:
    """A block for each call, and the text that a stream's delta carries for it.

    Arguments that are no JSON object can't be a `tool_use`'s input, so the client gets such a call as text.
    """
    for call in choice.tool_calls:
        arguments = _object(call)
        if arguments is None:
            text = f"{call.name} was called with arguments that are no JSON object: {call.arguments}"
            yield {"type": "text", "text": text}, text
        else:
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}
            yield block, call.arguments


def _object(call: ToolCall) -> dict[str, Any] | None:
    if not call.arguments.strip():
        return {}
    try:
        value = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict):
        return None
    if _LONG_INTEGER.search(call.arguments):
        with suppress(ValueError):  # of more digits than Python reads
            return cast("dict[str, Any]", json.loads(call.arguments))
    return value


def _stop(request: ChatRequest, choice: Choice) -> tuple[str, str | None]:
    """The stop reason and the stop sequence."""
    match choice.finish_reason:
        case "length" | "abort":
            return "max_tokens", None
        case "content_filter":
            return "refusal", None
    if any(block["type"] == "tool_use" for block, _ in _call_blocks(choice)):
        return "tool_use", None
    if choice.stop_sequence is not None and choice.stop_sequence in (request.sampling.stop or ()):
        return "stop_sequence", choice.stop_sequence
    return "end_turn", None
