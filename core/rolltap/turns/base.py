"""What token turns and chat turns have in common."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from inspect import iscoroutine
from typing import Any, TypeVar

import msgspec

from rolltap.bases.backends import BackendHandle
from rolltap.errors import UpstreamError, failure
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
        self._sampling: dict[str, Any] = msgspec.to_builtins(request.sampling, str_keys=True)

    def _each(self, stream: AsyncIterator[T], kind: type[T]) -> AsyncGenerator[T, None]:
        """What the backend gives, checked."""
        plugin = self.handle.plugin or self.handle.name
        return each(stream, kind, plugin=plugin, time_limit_s=self.handle.time_limit_s)

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
            sampling=self._sampling,
            created_at=time.time(),
        )


def named(output: Output, choice: Choice, conversation: Conversation) -> Output:
    """Give an output the key by which a later request finds it."""
    if conversation.link:
        output.message = canonical.fingerprint(as_message(choice))
        output.key = canonical.chain_next(conversation.link, output.message)
    return output


async def each(
    stream: AsyncIterator[T], kind: type[T], *, plugin: str, time_limit_s: float | None = None
) -> AsyncGenerator[T, None]:
    """A backend's deltas, closed with certainty: it may be a generator or any other async iterator.

    :raises PluginError: that names the plugin, where it gives anything else.
    :raises UpstreamError: 504, where it is silent for longer than `time_limit_s`; also where the backend cancels
        itself, which must not look as if this request were cancelled.
    """
    if not isinstance(stream, AsyncIterable):
        if iscoroutine(stream):
            stream.close()
        raise failure(
            plugin,
            f"its backend answered with a value of type {type(stream).__name__}; it must be an async generator, an `async def` "
            "with `yield` in it",
        )
    try:
        async for item in stream if time_limit_s is None else _timed(stream, plugin, time_limit_s):
            if not isinstance(item, kind):
                raise failure(
                    plugin,
                    f"its backend yielded a value of type {type(item).__name__}; it must yield {kind.__name__}",
                )
            yield item
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise UpstreamError(f"{plugin}: its backend gave up: it was cancelled from within") from error
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


async def _timed(stream: AsyncIterator[T], plugin: str, limit_s: float) -> AsyncIterator[T]:
    while True:
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                item = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError:
            if not limit.expired():
                raise
            raise UpstreamError(
                f"{plugin}: its backend was silent for [plugins] backend_time_limit_s = {limit_s:g}",
                status=504,
            ) from None
        yield item
