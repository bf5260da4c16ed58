"""Going on after an engine has ended a generation for a reason of its own, such as an update of its weights."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import NamedTuple, TypeVar

from rolltap.types.chat import Sampling
from rolltap.weights import WeightUpdates

T = TypeVar("T")

_FOLLOWS_THE_OUTPUT = frozenset(
    {"structured_outputs", "bad_words", "logits_processors", "thinking_token_budget"}  # vLLM
    | {
        "regex",
        "ebnf",
        "json_schema",
        "structural_tag",
        "custom_logit_processor",
        "max_thinking_tokens",
    }  # SGLang
)
"""Parameters by which an engine looks at what it has generated so far; one that is sent this as a prompt can't."""


class Continuation(NamedTuple):
    """What a token turn needs to wait for its engine, and what the model's config says of that."""

    updates: WeightUpdates
    hold: Callable[[], AbstractAsyncContextManager[None]]
    """Stops the call's clock for as long as it lasts."""
    on_abort: str = "continue"
    pause_limit_s: float = 1800.0
    salted: bool = False
    """Whether requests carry the weights' version as `cache_salt`."""


class EngineAborted(Exception):
    """The engine gave a generation up, and it is not gone on from."""


class RestartCall(Exception):
    """The engine gave a generation up; the call begins anew: nothing of it has been sent."""


def cannot_go_on(sampling: Sampling) -> str:
    """Why a generation can't be gone on from in the middle, in words; "" where it can."""
    if sampling.response_format is not None or any(
        name.startswith("guided_") or name in _FOLLOWS_THE_OUTPUT for name in sampling.extra
    ):
        return "its output follows a grammar or a list, which the engine would begin anew"
    if sampling.presence_penalty or sampling.frequency_penalty:
        return "penalties count the output, which would become a prompt"
    if sampling.seed is not None and sampling.temperature != 0:
        return "its random numbers, fixed by a seed, would begin anew"
    return ""


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """The items of several streams as they come. The first error of one ends all."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for first in only:
                yield first
        return
    queue: asyncio.Queue[T | None] = asyncio.Queue(maxsize=64)

    async def pump(stream: AsyncGenerator[T, None]) -> None:
        async with aclosing(stream):
            async for item in stream:
                await queue.put(item)
        await queue.put(None)

    tasks = [asyncio.ensure_future(pump(stream)) for stream in streams]
    try:
        left = len(tasks)
        while left:
            getting = asyncio.ensure_future(queue.get())
            failed = [task for task in tasks if task.done() and task.exception() is not None]
            if not failed:
                await asyncio.wait(
                    {getting, *(t for t in tasks if not t.done())}, return_when=asyncio.FIRST_COMPLETED
                )
                failed = [task for task in tasks if task.done() and task.exception() is not None]
            if failed and not getting.done():
                getting.cancel()
                failed[0].result()
            item = await getting
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
