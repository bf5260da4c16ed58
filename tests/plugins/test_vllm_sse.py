"""Reading event streams: the same events however the bytes were cut."""

from itertools import pairwise
from types import SimpleNamespace

import aiohttp
from hypothesis import given
from hypothesis import strategies as st

from rolltap_plugins.vllm.sse import events


class Content(aiohttp.StreamReader):
    """A response's content that comes in given pieces."""

    def __init__(self, pieces):
        self._pieces = pieces

    async def _pass_on(self):
        for piece in self._pieces:
            yield piece

    def iter_any(self):
        return self._pass_on()


async def read(*pieces):
    return [event async for event in events(Content(pieces))]


async def test_events_comments_and_other_fields():
    stream = b": ping\n\nevent: message\ndata: one\nid: 3\n\ndata:two\r\n\r\ndata: a\ndata: b\n\n\n\ndata: [DONE]\n\n"
    assert await read(stream) == [b"one", b"two", b"a\nb", b"[DONE]"]


async def test_an_event_that_was_not_ended_is_left_out():
    assert await read(b"data: one\n\ndata: tw") == [b"one"]
    assert await read(b"data: one\n\ndata: two\n") == [b"one"]


LINES = st.lists(
    st.binary(min_size=1, max_size=12).filter(lambda line: b"\n" not in line and b"\r" not in line)
)


@given(LINES, st.lists(st.integers(0, 400), max_size=20), st.booleans())
async def test_cuts_change_nothing(lines, cuts, crlf):
    end = b"\r\n" if crlf else b"\n"
    stream = b"".join(b"data: " + line + end + end for line in lines)
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    pieces = [stream[start:stop] for start, stop in pairwise(edges)]
    assert await read(*pieces) == lines


async def test_a_long_line_is_joined_once():
    joins = SimpleNamespace(bytes=0)

    class Counted(bytes):
        def split(self, *args):
            joins.bytes += len(self)
            return super().split(*args)

    line = b"data: " + b"x" * 100_000 + b"\n\n"
    pieces = [Counted(line[start : start + 100]) for start in range(0, len(line), 100)]
    assert [len(event) for event in await read(*pieces)] == [100_000]
    assert joins.bytes == len(line)
