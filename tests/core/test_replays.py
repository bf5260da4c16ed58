"""What is kept for replays is bounded, and a call does not run far ahead of its readers."""

import asyncio

from rolltap import ChatDelta, Choice, Completion
from rolltap.replays import AHEAD, Replays


def completion(name="c"):
    return Completion(id=name, model="m", created=0)


def call(deltas, started):
    async def start(original):
        started.append(original)
        for delta in deltas:
            yield delta
            await asyncio.sleep(0)
        original.choices = [Choice(text="done")]

    return start


async def read(stream):
    return [delta.text async for delta in stream]


def key(number):
    return ("session", "/path", str(number).encode(), "")


async def test_a_call_that_ended_is_forgotten_when_others_have_ended_since():
    replays, started = Replays(most=2), []
    start = call([ChatDelta(text="x")], started)
    for number in range(3):
        await read(replays.answer(key(number), start, completion(), retry=True))
    assert len(started) == 3
    await read(replays.answer(key(2), start, completion(), retry=True))
    assert len(started) == 3
    await read(replays.answer(key(0), start, completion(), retry=True))
    assert len(started) == 4


async def test_a_call_that_ended_is_forgotten_after_a_while():
    replays, started = Replays(window_s=0.0), []
    start = call([ChatDelta(text="x")], started)
    for _ in range(2):
        await read(replays.answer(key(0), start, completion(), retry=True))
    assert len(started) == 2


async def test_a_joined_request_becomes_the_same_completion():
    replays, started = Replays(), []
    start = call([ChatDelta(text="x")] * 5, started)
    mine, other = completion("mine"), completion("other")
    results = await asyncio.gather(
        read(replays.answer(key(0), start, mine, retry=False)),
        read(replays.answer(key(0), start, other, retry=False)),
    )
    assert results[0] == results[1] == ["x"] * 5
    assert len(started) == 1
    assert (other.id, other.choices[0].text) == ("mine", "done")


async def test_a_slow_reader_slows_the_call():
    produced = []

    async def endless(original):
        while True:
            produced.append(1)
            yield ChatDelta(text="x")

    stream = Replays().answer(key(0), endless, completion(), retry=False)
    assert (await anext(stream)).text == "x"
    await asyncio.sleep(0.05)
    assert AHEAD <= len(produced) <= AHEAD + 3
    for _ in range(10):
        await anext(stream)
    await asyncio.sleep(0.05)
    assert len(produced) <= AHEAD + 13
    await stream.aclose()
    seen = len(produced)
    await asyncio.sleep(0.05)
    assert len(produced) == seen
