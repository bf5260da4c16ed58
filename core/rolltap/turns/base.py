"""What token turns and chat turns have in common."""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

import msgspec

from rolltap.bases.backends import BackendHandle
from rolltap.record import canonical
from rolltap.record.forest import Forest
from rolltap.turns.collecting import Collector, as_message
from rolltap.turns.prompts import Conversation
from rolltap.types.chat import ChatRequest
from rolltap.types.generation import ChatDelta, Choice, Completion
from rolltap.types.record import NodesRecorded, Output, Prompt

T = TypeVar("T")


class Turn(ABC):
    """One request at one backend: asks it, reads its answer, and knows what to record of it."""

    def __init__(self, request: ChatRequest, handle: BackendHandle, completion: Completion) -> None:
        self.request = request
        self.handle = handle
        self.completion = completion
        self._collector = Collector(completion)
        self._ends: list[ChatDelta] = []

    @abstractmethod
    def deltas(self) -> AsyncGenerator[ChatDelta, None]:
        """Ask the backend; yield what can be sent at once."""

    @abstractmethod
    def entry(self, forest: Forest, *, aborted: bool = False) -> NodesRecorded | None:
        """What the session's log gets of this turn; None where nothing was generated."""

    @property
    def drifted(self) -> bool:
        """Whether the engine saw another prompt than it was sent."""
        return False

    def ends(self) -> list[ChatDelta]:
        """Each choice's last delta."""
        return self._ends

    def _recorded(
        self, conversation: Conversation, prompt: Prompt, outputs: list[Output], forest: Forest
    ) -> NodesRecorded:
        return NodesRecorded(
            parent_id=conversation.parent.id if conversation.parent is not None else None,
            context=conversation.context,
            prompt=prompt,
            outputs=outputs,
            branch_reason=conversation.branch_reason(forest),
            backend=self.handle.name,
            model=self.handle.model,
            sampling=msgspec.to_builtins(self.request.sampling, str_keys=True),
            created_at=time.time(),
        )


def named(output: Output, choice: Choice, conversation: Conversation) -> Output:
    """Give an output the key by which a later request finds it."""
    if conversation.link:
        output.message = canonical.fingerprint(as_message(choice))
        output.key = canonical.chain_next(conversation.link, output.message)
    return output


async def each(stream: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """A plugin's deltas, closed with certainty: it may be a generator or any other async iterator."""
    try:
        async for item in stream:
            yield item
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
