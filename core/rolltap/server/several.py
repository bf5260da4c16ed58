"""A request with several prompts: a call for each, answered as one reply."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from rolltap.call import Call, Origin, Unrecorded
from rolltap.pipeline import Pipeline
from rolltap.session import Session
from rolltap.types.chat import ChatRequest
from rolltap.types.generation import ChatDelta, Completion, Usage


def begin_all(
    pipeline: Pipeline, chat: ChatRequest, session: Session | Unrecorded, origin: Origin
) -> "SeveralCalls":
    """Begin a call for each prompt of a request, or none of them."""
    calls: list[Call] = []
    try:
        for at, prompt in enumerate((chat.prompt, *chat.more_prompts)):
            one = msgspec.structs.replace(chat, prompt=prompt, more_prompts=())
            # The same prompt twice in one request is meant twice.
            own = origin._replace(body=origin.body + at.to_bytes(4, "big") if origin.body else b"")
            calls.append(pipeline.begin(one, session, own))
    except BaseException:
        for call in calls:
            call.abandon()
        raise
    return SeveralCalls(calls)


class SeveralCalls:
    """The calls of one request, read together: the choices of the first prompt first, numbered through."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self.sampling = calls[0].request.sampling
        """The parameters that hold for all, a session's pins among them."""
        self.num_choices = self.sampling.n
        """How many choices each prompt has."""

    @property
    def completion(self) -> Completion:
        """What the calls add up to."""
        own = [call.completion for call in self._calls]
        return msgspec.structs.replace(
            own[0],
            choices=[
                msgspec.structs.replace(choice, index=choice.index + at * self.num_choices)
                for at, completion in enumerate(own)
                for choice in completion.choices
            ],
            usage=_sum([completion.usage for completion in own]),
            node_ids=tuple(name for completion in own for name in completion.node_ids),
        )

    async def deltas(self) -> AsyncGenerator[ChatDelta, None]:
        """Every delta of all calls, as they come. The first failure ends them all."""
        queue: asyncio.Queue[ChatDelta | Exception | None] = asyncio.Queue()
        reported: dict[int, Usage] = {}
        tasks = [
            asyncio.ensure_future(call.serve(self._read(at, call, queue)))
            for at, call in enumerate(self._calls)
        ]
        try:
            running = len(tasks)
            while running:
                delta = await queue.get()
                if delta is None:
                    running -= 1
                    continue
                if isinstance(delta, Exception):
                    raise delta
                if delta.usage is not None:
                    reported[delta.index // self.num_choices] = delta.usage
                    delta.usage = _sum([*reported.values()])
                yield delta
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, at: int, call: Call, queue: "asyncio.Queue[ChatDelta | Exception | None]") -> None:
        by = at * self.num_choices
        try:
            async with aclosing(call.deltas()) as deltas:
                async for delta in deltas:
                    queue.put_nowait(msgspec.structs.replace(delta, index=delta.index + by))
        except Exception as error:
            queue.put_nowait(error)
            raise
        finally:
            queue.put_nowait(None)

    async def drain(self, deltas: AsyncGenerator[ChatDelta, None]) -> None:
        """The client has left: nobody reads on, but for calls that others have joined."""
        await deltas.aclose()

    def abandon(self) -> None:
        """Nobody will read it."""
        for call in self._calls:
            call.abandon()

    async def delivered(self) -> None:
        """A client has got everything."""
        for call in self._calls:
            await call.delivered()

    async def left(self) -> None:
        """A client has left before it had everything."""
        for call in self._calls:
            await call.left()

    async def serve(self, work: Any) -> Any:
        """Do the work of one client."""
        try:
            return await work
        except asyncio.CancelledError:
            await self.left()
            raise


def _sum(counted: Sequence[Usage]) -> Usage:
    def total(name: str) -> int | None:
        known = [value for usage in counted if (value := getattr(usage, name)) is not None]
        return sum(known) if known else None

    return Usage(
        prompt_tokens=total("prompt_tokens") or 0,
        completion_tokens=total("completion_tokens") or 0,
        cached_tokens=total("cached_tokens"),
        reasoning_tokens=total("reasoning_tokens"),
    )
