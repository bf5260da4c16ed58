"""A request at a chat backend."""

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from rolltap.backend_handle import BackendHandle
from rolltap.bases.backends import ChatBackend
from rolltap.errors import UpstreamError
from rolltap.reading import OutputReader
from rolltap.turns.base import Turn, TurnRecord
from rolltap.turns.begun import split_begun, whole_answer
from rolltap.turns.collecting import as_message
from rolltap.turns.delta_checks import checked_delta
from rolltap.turns.fragments import CallFragments
from rolltap.turns.prompts import Placement
from rolltap.turns.readers import Readers
from rolltap.types.chat import ChatRequest, ToolCall
from rolltap.types.generation import ChatDelta, Usage
from rolltap.types.ledger import Output, Prompt

TEXT_ONLY = "a text-only backend gives no token ids"


class ChatTurn(Turn):
    """A request at a chat backend: recorded as text."""

    def __init__(
        self,
        request: ChatRequest,
        handle: BackendHandle,
        *,
        backend: ChatBackend,
        placement: Placement,
        readers: Readers | None,
    ) -> None:
        super().__init__(request, handle)
        self._backend = backend
        self._placement = placement
        self._readers = readers
        self._calls: dict[int, CallFragments] = {}
        self._call_ids = {call.id for message in request.messages for call in message.tool_calls}
        self._finished: dict[int, ChatDelta] = {}
        self._pieces = 0

    async def deltas(self) -> AsyncGenerator[ChatDelta, None]:
        """Ask the backend; yield its deltas, each whole tool call as a fragment of its own."""
        async with aclosing(self._checked(self._backend.chat(self.request), ChatDelta)) as stream:
            async for came in stream:
                for delta in self._sendable(checked_delta(came, self.request.sampling.n)):
                    if self.request.continuous_usage:
                        delta.usage = self.counted()
                    yield delta
        for index in sorted((self._collector.begun or {0}) - self._finished.keys()):
            cut_off = self._backend.ends_explicitly or not self._collector.begun
            if cut_off and not self.handle.may_just_stop:
                raise UpstreamError(f"the backend's answer ended without a finish reason of choice {index}")
            for delta in self._sendable(ChatDelta(index=index, finish_reason="stop")):
                yield delta

    def _sendable(self, came: ChatDelta) -> list[ChatDelta]:
        """What can be sent at once of a delta: all but the end of its choice."""
        deltas = self._read(came)
        for delta in deltas:
            self._collector.add(delta)
            self._pieces += bool(delta.text or delta.reasoning or delta.tool_calls)
            if delta.finish_reason is not None:
                self._finished[delta.index] = ChatDelta(
                    index=delta.index, finish_reason=delta.finish_reason, stop_sequence=delta.stop_sequence
                )
                delta.finish_reason = delta.stop_sequence = None
        return deltas

    def _read(self, delta: ChatDelta) -> list[ChatDelta]:
        calls = self._calls.setdefault(delta.index, CallFragments(self._call_ids))
        delta.tool_calls = [fragment for call in delta.tool_calls for fragment in calls.take(call)]
        if delta.finish_reason is not None:
            delta.tool_calls += calls.finish()
        if self._readers is None:
            return [_as_tool_calls(delta, calls)]
        return self._read_raw(delta, self._readers.choices[delta.index])

    def _read_raw(self, delta: ChatDelta, reader: OutputReader) -> list[ChatDelta]:
        """The deltas of a backend whose text still holds the model's own markup."""
        calls = self._calls[delta.index]
        pieces = [*reader.feed(delta.text)] if delta.text else []
        if delta.finish_reason is not None:
            pieces += reader.finish()
        deltas = []
        for piece in pieces:
            if isinstance(piece, str):
                deltas.append(ChatDelta(index=delta.index, text=piece))
            elif isinstance(piece, ToolCall):
                deltas.append(ChatDelta(index=delta.index, tool_calls=[*calls.take(piece)]))
            else:
                deltas.append(ChatDelta(index=delta.index, reasoning=piece.text))
        delta.text = ""
        return [*deltas, _as_tool_calls(delta, calls)]

    def final_deltas(self) -> list[ChatDelta]:
        """See `Turn.final_deltas`."""
        ends = [self._finished[index] for index in sorted(self._finished)]
        for end in ends:
            self._collector.add(end)
        return ends

    def counted(self) -> Usage:
        """The upstream's count; where it counts nothing, the pieces that came are the best count there is."""
        return self._collector.usage or Usage(completion_tokens=self._pieces)

    def usage(self) -> Usage:
        """See `Turn.usage`. The upstream has counted the thinking too."""
        return self.counted()

    def recorded(self, *, aborted: bool = False, error: str | None = None) -> TurnRecord | None:
        """The conversation as text; never trainable."""
        messages, begun = split_begun(self.request)
        outputs = [
            Output(
                node_id=str(uuid.uuid4()),
                message=whole_answer(begun, as_message(choice)),
                finish_reason="abort" if aborted else choice.finish_reason,
                untrainable_reason=TEXT_ONLY,
                delivery="aborted" if aborted else "delivered",
                error=error,
            )
            for choice in self.answer().choices
        ]
        if not outputs:
            return None
        prompt = Prompt(messages=messages[self._placement.kept :])
        return TurnRecord(self._placement, prompt, outputs, messages)


def _as_tool_calls(delta: ChatDelta, calls: CallFragments) -> ChatDelta:
    if delta.finish_reason == "stop" and calls.told:
        delta.finish_reason = "tool_calls"
    return delta
