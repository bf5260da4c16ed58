"""A request at a chat backend."""

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from rolltap.bases.backends import BackendHandle, ChatBackend
from rolltap.errors import UpstreamError
from rolltap.reading import OutputReader
from rolltap.record.forest import Forest
from rolltap.turns.base import Turn, named
from rolltap.turns.collecting import as_message, transcript
from rolltap.turns.fragments import CallFragments
from rolltap.turns.prompts import Conversation
from rolltap.turns.readers import Readers
from rolltap.turns.taking import taken
from rolltap.types.chat import ChatRequest, ToolCall
from rolltap.types.generation import ChatDelta, Completion
from rolltap.types.record import NodesRecorded, Output, Prompt

TEXT_ONLY = "a text-only backend gives no token ids"


class ChatTurn(Turn):
    """A request at a chat backend: recorded as text."""

    def __init__(
        self,
        request: ChatRequest,
        handle: BackendHandle,
        completion: Completion,
        *,
        conversation: Conversation,
        readers: Readers | None,
    ) -> None:
        super().__init__(request, handle, completion)
        self._conversation = conversation
        self._readers = readers
        self._calls: dict[int, CallFragments] = {}
        self._call_ids = {call.id for message in request.messages for call in message.tool_calls}
        self._finished: dict[int, ChatDelta] = {}

    async def deltas(self) -> AsyncGenerator[ChatDelta, None]:
        """Ask the backend; yield its deltas, each whole tool call as a fragment of its own."""
        backend = self.handle.backend
        assert isinstance(backend, ChatBackend)  # noqa: S101 - the pipeline chose the turn by it
        async with aclosing(self._each(backend.chat(self.request), ChatDelta)) as stream:
            async for came in stream:
                for delta in self._sendable(taken(came, self.request.sampling.n)):
                    yield delta
        for index in sorted((self._collector.begun or {0}) - self._finished.keys()):
            if backend.ends_explicitly or not self._collector.begun:
                raise UpstreamError(f"the backend's answer ended without a finish reason of choice {index}")
            for delta in self._sendable(ChatDelta(index=index, finish_reason="stop")):
                yield delta
        self._ends = [self._finished[index] for index in sorted(self._finished)]
        self._collector.collect()

    def _sendable(self, came: ChatDelta) -> list[ChatDelta]:
        """What can be sent at once of a delta: all but the end of its choice."""
        deltas = self._read(came)
        for delta in deltas:
            self._collector.add(delta)
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

    def entry(self, forest: Forest, *, aborted: bool = False) -> NodesRecorded | None:
        """The conversation as text; never trainable."""
        conversation = self._conversation
        outputs = []
        for choice in self._collector.collect().choices:
            output = Output(
                node_id=str(uuid.uuid4()),
                text=transcript([as_message(choice)]),
                finish_reason="abort" if aborted else choice.finish_reason,
                untrainable_reason=TEXT_ONLY,
                delivery="aborted" if aborted else "delivered",
            )
            outputs.append(named(output, choice, conversation))
        if not outputs:
            return None
        new = self.request.messages[conversation.kept :]
        raw = self.request.prompt if isinstance(self.request.prompt, str) else ""
        prompt = Prompt(text=raw or transcript(new), messages=conversation.new)
        return self._recorded(conversation, prompt, outputs, forest)


def _as_tool_calls(delta: ChatDelta, calls: CallFragments) -> ChatDelta:
    if delta.finish_reason == "stop" and calls.told:
        delta.finish_reason = "tool_calls"
    return delta
