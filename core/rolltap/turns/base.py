"""What token turns and chat turns have in common."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from inspect import iscoroutine
from typing import Any, NamedTuple, TypeVar

import msgspec

from rolltap.backend_handle import BackendHandle
from rolltap.errors import UpstreamError, failure
from rolltap.turns.collecting import Answer, Collector
from rolltap.turns.prompts import Placement
from rolltap.types.chat import ChatRequest, Message
from rolltap.types.generation import ChatDelta, Usage
from rolltap.types.ledger import Output, Prompt

T = TypeVar("T")


class TurnRecord(NamedTuple):
    """What the record gets of a turn."""

    placement: Placement
    prompt: Prompt
    outputs: list[Output]
    messages: tuple[Message, ...]
    """The conversation that the outputs answer, as it is recorded."""


class Turn(ABC):
    """One request at one backend: asks it, reads its answer, and knows what to record of it."""

    def __init__(self, request: ChatRequest, handle: BackendHandle) -> None:
        self.request = request
        self.handle = handle
        self.sampling: dict[str, Any] = msgspec.to_builtins(request.sampling, str_keys=True)
        """The effective parameters."""
        self.notes: list[str] = []
        """What a reader of the node should know, in words."""
        self._collector = Collector()

    @abstractmethod
    def deltas(self) -> AsyncGenerator[ChatDelta, None]:
        """Ask the backend; yield what can be sent at once: all but the ends of the choices."""

    @abstractmethod
    def final_deltas(self) -> list[ChatDelta]:
        """Each choice's last delta, with its finish reason; to be sent once the record is stored."""

    @abstractmethod
    def counted(self) -> Usage:
        """The tokens so far, as far as they are known without any work."""

    @abstractmethod
    def usage(self) -> Usage:
        """The tokens so far, with those of the thinking."""

    @abstractmethod
    def recorded(self, *, aborted: bool = False, error: str | None = None) -> TurnRecord | None:
        """What is recorded of this turn; None where nothing was generated.

        `aborted`: it was ended early, by the client or, where `error` says so, by something else.
        """

    def answer(self) -> Answer:
        """What came so far, or all of it."""
        return self._collector.collect()

    @property
    def drifted(self) -> bool:
        """Whether the engine saw another prompt than it was sent."""
        return False

    def _checked(self, stream: AsyncIterator[T], kind: type[T]) -> AsyncGenerator[T, None]:
        return checked_stream(stream, kind, plugin=self.handle.plugin, time_limit_s=self.handle.time_limit_s)


async def checked_stream(
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
    except (SystemExit, KeyboardInterrupt) as error:
        raise failure(
            plugin, f"its backend raised {type(error).__name__}, which may not end the server"
        ) from error
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
