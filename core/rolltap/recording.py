"""What is recorded of a call, and who is told of it."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

from rolltap.call import Call, CallCut
from rolltap.errors import ErrorInfo
from rolltap.models import Models
from rolltap.plugins import Plugins
from rolltap.record.views import view
from rolltap.session import Session
from rolltap.turns.base import Turn
from rolltap.types.ledger import CallFailed, CallRecorded, Times, TokenCounts

log = logging.getLogger(__name__)

T = TypeVar("T")


class Recorder:
    """Stores what calls have generated, to the end also where their clients leave meanwhile."""

    def __init__(self, models: Models, plugins: Plugins) -> None:
        self.counts: Counter[str] = Counter()
        """How many completions were recorded, untrainable, drifted, aborted."""
        self._models = models
        self._plugins = plugins
        self._background: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Wait until what is still being recorded is stored."""
        while self._background:
            await asyncio.gather(*self._background)

    async def whole(self, call: Call, turn: Turn) -> None:
        """Record a turn that has ended, to the end also where the client leaves meanwhile."""
        if call.recorded_session is None:
            self.counts["drifted"] += turn.drifted
            return
        recording = self.in_background(self._record(call, turn))
        try:
            await asyncio.shield(recording)
        except asyncio.CancelledError:
            self.in_background(self._left_while_recording(call, recording))
            raise

    async def _left_while_recording(self, call: Call, recording: "asyncio.Task[None]") -> None:
        await recording
        await call.left()

    async def cut(self, call: Call, info: ErrorInfo) -> None:
        """Record what came of a call that was ended early by the server."""
        if call.turn is not None and not call.recording:
            await self._record(call, call.turn, aborted=True, error=info.message)
        await self.note_failed(call, CallCut(info))

    async def left(self, call: Call, turn: Turn | None) -> None:
        """Record what came of a call that its client has left."""
        if turn is not None and not call.recording:
            await self._record(call, turn, aborted=True)
        await self.note_failed(call, RuntimeError("the client left before anything was generated"))

    async def _record(
        self, call: Call, turn: Turn, *, aborted: bool = False, error: str | None = None
    ) -> None:
        """Store what the turn generated, then tell the plugins."""
        call.recording = True
        self.counts["drifted"] += turn.drifted
        session = call.recorded_session
        recorded = turn.recorded(aborted=aborted, error=error) if session is not None else None
        if session is None or recorded is None:
            return
        placement = recorded.placement
        usage = turn.counted()
        entry = CallRecorded(
            call_id=call.id,
            parent_id=placement.parent.id if placement.parent is not None else None,
            after_id=placement.after.id if placement.after is not None else None,
            context=placement.context,
            definitions=placement.definitions,
            prompt=recorded.prompt,
            outputs=tuple(recorded.outputs),
            branch_note=placement.note,
            notes=(*call.notes, *turn.notes),
            backend=turn.handle.name,
            asked_model=call.asked_model,
            sampling=turn.sampling,
            dialect=call.origin.dialect,
            client=call.origin.client,
            request_id=call.origin.request_id,
            streamed=call.request.stream,
            times=Times(call.origin.received, call.sent_at, call.first_token_at, time.time()),
            usage=TokenCounts(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens),
            reply_id=call.completion.id,
            kept=call.request.keep,
            num_instructions=call.request.num_instructions,
        )
        call.nodes = await session.append(entry)
        if call.nodes and call.request.prompt is None:
            session.record.forest.remember(call.nodes[0], recorded.messages, placement.after, placement.kept)
        await self._tell(call, session, aborted=aborted)

    async def _tell(self, call: Call, session: Session, *, aborted: bool) -> None:
        """Count the recorded nodes, and tell the plugins of them."""
        for node in call.nodes:
            self.counts["nodes"] += 1
            self.counts["untrainable"] += not node.trainable
            self.counts["aborted"] += aborted
            if not node.trainable and node.has_tokens:
                reason = node.output.untrainable_reason
                log.warning("session %s: node %s is untrainable: %s", session.id, node.id, reason)
            if self._plugins.order("record_node"):
                seen = view(session.record, node, tree=session.info.track_tree, decode=self._models.decode)
                await self._plugins.notify("record_node", session=session.info, node=seen)

    def in_background(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Finish work that must not be lost with the request it belongs to."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def note_failed(self, call: Call, error: Exception) -> None:
        """Write that a call which had begun has ended without anything to record."""
        session = call.recorded_session
        if session is not None and call.id in session.record.begun:
            await session.append(CallFailed(call_id=call.id, reason=str(error)))
