"""Streamed replies of the Responses API: the whole lifecycle of a response and of each of its items."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from rolltap import ChatDelta, ChatRequest, Completion, ErrorInfo, StreamEncoder, ToolCall, ToolCallDelta
from rolltap_plugins.openai_dialects.custom import InputReader
from rolltap_plugins.openai_dialects.replies import logprobs_body
from rolltap_plugins.openai_dialects.responses.replies import (
    call_item,
    carried,
    envelope,
    finished,
    item_id,
    item_status,
    message_item,
    reasoning_item,
    reasoning_part,
    text_part,
)
from rolltap_plugins.openai_dialects.responses.sealed import sealed
from rolltap_plugins.openai_dialects.responses.tools import state_of
from rolltap_plugins.wire import event_frame, fragments


class _Written:
    """A message or a piece of thinking, while it is written."""

    def __init__(self, kind: str, name: str, index: int) -> None:
        self.kind = kind
        self.name = name
        self.index = index
        self.pieces: list[str] = []
        self.logprobs: list[dict[str, Any]] = []

    @property
    def place(self) -> dict[str, Any]:
        """Where its text's events belong."""
        return {"item_id": self.name, "output_index": self.index, "content_index": 0}

    def part(self) -> dict[str, Any]:
        """Its content so far."""
        text = "".join(self.pieces)
        return text_part(text, self.logprobs) if self.kind == "message" else reasoning_part(text)

    def item(self, status: str, *, empty: bool = False) -> dict[str, Any]:
        """The item so far, or as it is when it begins."""
        if self.kind == "message":
            return message_item(self.name, status, [] if empty else [self.part()])
        return reasoning_item(self.name, status, None if empty else "".join(self.pieces))


class _Called:
    """A call, while its arguments come."""

    def __init__(self, name: str, index: int, call: ToolCall, *, custom: bool) -> None:
        self.name = name
        self.index = index
        self._call = call
        self.arguments: list[str] = []
        self.input = InputReader() if custom else None
        """Reads what the client is sent of a freeform tool's call."""

    @property
    def call(self) -> ToolCall:
        """The call as far as it has come."""
        return msgspec.structs.replace(self._call, arguments="".join(self.arguments))


class ResponseStream(StreamEncoder):
    """A streamed reply.

    Thinking and text are written one item at a time, the next beginning where the kind changes. Calls may be open
    side by side, since their fragments may come interleaved, and end with the reply.
    """

    def __init__(self, request: ChatRequest, completion: Completion) -> None:
        self._request = request
        self._completion = completion
        self._envelope = envelope(request, completion)
        self._number = -1
        self._items: list[dict[str, Any]] = []
        self._open: _Written | None = None
        self._calls: dict[int, _Called] = {}
        self._numbers: Counter[str] = Counter()
        self._kept: dict[str, Any] = {}
        """What the upstream said beside the message and no item has carried yet."""
        self._logprobs: list[dict[str, Any]] = []

    def start(self) -> bytes:
        """`response.created` and `response.in_progress`."""
        return b"".join(
            self._event(f"response.{kind}", response=self._envelope) for kind in ("created", "in_progress")
        )

    def delta(self, delta: ChatDelta) -> bytes:
        """The thinking, the text and the calls; a response has one choice, whatever a session's `n` is."""
        if delta.index:
            return b""
        if delta.logprobs:
            self._logprobs += logprobs_body(delta.logprobs)
        for name, value in carried(delta.extra or {}).items():
            so_far = self._kept.get(name)
            both = isinstance(so_far, list) and isinstance(value, list)
            self._kept[name] = [*(so_far or ()), *value] if both else value
        frames = b""
        if delta.reasoning:
            frames += self._write("reasoning", delta.reasoning)
        if delta.text:
            frames += self._write("message", delta.text)
        for call in fragments(delta):
            frames += self._call(call)
        return frames

    def finish(self, completion: Completion) -> bytes:
        """The end of every item, and of the response."""
        frames = b""
        if not self._items:
            frames += self._write("message", "")
        status = item_status(completion)
        frames += self._close(status)
        frames += self._carry()
        for called in self._calls.values():
            frames += self._close_call(called, status)
        whole = finished(self._envelope, completion, self._items)
        return frames + self._event(f"response.{whole['status']}", response=whole)

    def error(self, info: ErrorInfo) -> bytes:
        """`response.failed`; what had been written stays in its output."""
        frames = self._close("incomplete")
        for called in self._calls.values():
            frames += self._close_call(called, "incomplete")
        error = {"code": info.code or "server_error", "message": info.message}
        failed = self._envelope | {"status": "failed", "error": error, "output": self._items}
        return frames + self._event("response.failed", response=failed)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return event_frame({"type": kind, "sequence_number": self._number, **fields})

    def _begin(self, item: Mapping[str, Any]) -> bytes:
        self._items.append(dict(item))
        return self._event("response.output_item.added", output_index=len(self._items) - 1, item=item)

    def _end(self, index: int, item: dict[str, Any]) -> bytes:
        self._items[index] = item
        return self._event("response.output_item.done", output_index=index, item=item)

    def _write(self, kind: str, text: str) -> bytes:
        frames = b""
        if self._open is None or self._open.kind != kind:
            frames += self._close("completed")
            frames += self._open_new(kind)
        written = self._open
        assert written is not None  # noqa: S101 - opened above
        written.pieces.append(text)
        if kind == "reasoning":
            return frames + self._event("response.reasoning_text.delta", **written.place, delta=text)
        logprobs, self._logprobs = self._logprobs, []
        written.logprobs += logprobs
        return frames + self._event(
            "response.output_text.delta", **written.place, delta=text, logprobs=logprobs
        )

    def _open_new(self, kind: str) -> bytes:
        index = len(self._items)
        name = self._next_id("msg" if kind == "message" else "rs")
        written = self._open = _Written(kind, name, index)
        frames = self._begin(written.item("in_progress", empty=True))
        return frames + self._event("response.content_part.added", **written.place, part=written.part())

    def _close(self, status: str) -> bytes:
        if self._open is None:
            return b""
        written, self._open = self._open, None
        text = "".join(written.pieces)
        if written.kind == "message":
            written.logprobs += self._logprobs
            self._logprobs = []
            frames = self._event(
                "response.output_text.done", **written.place, text=text, logprobs=written.logprobs
            )
        else:
            frames = self._event("response.reasoning_text.done", **written.place, text=text)
        frames += self._event("response.content_part.done", **written.place, part=written.part())
        item = written.item(status)
        if written.kind == "reasoning" and self._kept:
            item["encrypted_content"] = sealed(self._kept)
            self._kept = {}
        return frames + self._end(written.index, item)

    def _carry(self) -> bytes:
        """An item for what the upstream said beside the message, where no thinking has carried it."""
        if not self._kept:
            return b""
        kept, self._kept = self._kept, {}
        index, name = len(self._items), self._next_id("rs")
        begun = self._begin(reasoning_item(name, "in_progress", None))
        return begun + self._end(index, reasoning_item(name, "completed", None, kept))

    def _call(self, fragment: ToolCallDelta) -> bytes:
        frames = b""
        called = self._calls.get(fragment.index)
        if called is None:
            frames += self._close("completed")
            call = ToolCall(
                name=fragment.name or "",
                arguments="",
                id=fragment.id or "",
                extra=fragment.extra or {},
            )
            custom = call.name in state_of(self._request).freeform
            called = self._calls[fragment.index] = _Called(
                self._next_id("fc"), len(self._items), call, custom=custom
            )
            frames += self._begin(call_item(called.name, "in_progress", called.call, self._request))
        if fragment.arguments:
            called.arguments.append(fragment.arguments)
            frames += self._call_delta(called, fragment.arguments)
        return frames

    def _call_delta(self, called: _Called, arguments: str) -> bytes:
        kind, text = "function_call_arguments", arguments
        if called.input is not None:
            kind, text = "custom_tool_call_input", called.input.feed(arguments)
        return self._call_piece(called, kind, text) if text else b""

    def _call_piece(self, called: _Called, kind: str, text: str) -> bytes:
        return self._event(
            f"response.{kind}.delta", item_id=called.name, output_index=called.index, delta=text
        )

    def _close_call(self, called: _Called, status: str) -> bytes:
        if not any(called.arguments):
            called.arguments.append("{}")
        call = called.call
        item = call_item(called.name, status, call, self._request)
        if called.input is not None:
            rest = called.input.finish()
            frames = self._call_piece(called, "custom_tool_call_input", rest) if rest else b""
            frames += self._event(
                "response.custom_tool_call_input.done",
                item_id=called.name,
                output_index=called.index,
                input=item["input"],
            )
            return frames + self._end(called.index, item)
        done = self._event(
            "response.function_call_arguments.done",
            item_id=called.name,
            output_index=called.index,
            name=call.name,
            arguments=call.arguments,
        )
        return done + self._end(called.index, item)

    def _next_id(self, kind: str) -> str:
        number = self._numbers[kind]
        self._numbers[kind] += 1
        return item_id(self._completion.id, kind, number)
