"""Who knows which nodes a call has become: those that leave before they have it all say so in the record."""

import asyncio

from rolltap import ChatDelta, Completion
from rolltap.replays import Replays

KEY = ("session", "/path", b"body", "")


def completion():
    return Completion(id="c", model="m", created=0)


async def call(original):
    """A call that is recorded before its last delta, as the pipeline's are."""
    yield ChatDelta(text="one")
    original.node_ids = ["n1"]
    yield ChatDelta(text="two")


async def until_recorded(replays):
    (flight,) = replays._flights.values()
    await flight._task


async def test_a_client_that_leaves_after_the_call_was_recorded_knows_its_nodes():
    replays, mine = Replays(), completion()
    stream = replays.answer(KEY, call, mine, retry=False)
    assert (await anext(stream)).text == "one"
    await until_recorded(replays)
    await stream.aclose()
    assert mine.node_ids == ["n1"]


async def test_one_that_leaves_after_another_was_served_does_not():
    replays, mine, theirs = Replays(), completion(), completion()
    leaver = replays.answer(KEY, call, mine, retry=False)
    stayer = replays.answer(KEY, call, theirs, retry=False)
    assert (await anext(leaver)).text == "one"
    assert [delta.text async for delta in stayer] == ["one", "two"]
    await leaver.aclose()
    assert (mine.node_ids, theirs.node_ids) == ([], ["n1"])


async def test_a_call_that_has_ended_is_in_flight_until_somebody_has_it_all():
    replays, started = Replays(), []

    def start(original):
        started.append(original)
        return call(original)

    slow = replays.answer(KEY, start, completion(), retry=False)
    assert (await anext(slow)).text == "one"
    await until_recorded(replays)
    for retry in (True, False):  # the second comes after the first has it all
        assert [delta.text async for delta in replays.answer(KEY, start, completion(), retry=retry)]
    assert len(started) == 2
    await slow.aclose()


async def test_one_that_leaves_before_the_end_of_a_call_that_goes_on_does_not():
    replays, mine, theirs = Replays(), completion(), completion()
    going_on = asyncio.Event()

    async def slow(original):
        yield ChatDelta(text="one")
        await going_on.wait()
        async for delta in call(original):
            yield delta

    leaver = replays.answer(KEY, slow, mine, retry=False)
    stayer = replays.answer(KEY, slow, theirs, retry=False)
    assert (await anext(leaver)).text == (await anext(stayer)).text == "one"
    await leaver.aclose()
    going_on.set()
    assert [delta.text async for delta in stayer] == ["one", "two"]
    assert (mine.node_ids, theirs.node_ids) == ([], ["n1"])


async def test_a_replay_has_an_end_of_its_time():
    replays, started = Replays(window_s=0.1), []

    def start(original):
        started.append(original)
        return call(original)

    for pause in (0, 0.2, 0):
        await asyncio.sleep(pause)
        assert [delta.text async for delta in replays.answer(KEY, start, completion(), retry=True)] in (
            ["one", "two"],
            [],  # a replay: this call has put nothing into its completion
        )
    assert len(started) == 2
