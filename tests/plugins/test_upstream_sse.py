"""Reading event streams: the same events however the bytes were cut, none after the end, none without end."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltap import UpstreamError
from rolltap_plugins.upstream.sse import EventReader


def read(*pieces):
    reader = EventReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + reader.finish()


def test_comments_and_other_fields_mean_nothing():
    stream = b": ping\n\nevent: message\ndata: one\nid: 3\n\ndata:two\r\n\r\ndata: a\ndata: b\n\n\n\n"
    assert read(stream) == [b"one", b"two", b"a\nb"]


def test_the_end_of_the_stream_ends_an_event():
    assert read(b"data: one\n\ndata: two") == [b"one", b"two"]


@pytest.mark.parametrize("done", [b"data: [DONE]\n\n", b"data:[DONE]\r\n\r\n", b"data: [DONE]"])
def test_nothing_after_the_end_is_an_event(done):
    after = b"data: late\n\nerror: {}\n\n"
    for pieces in ([b"data: one\n\n" + done + after], [b"data: one\n\n", done, after]):
        reader = EventReader()
        events = [event for piece in pieces if not reader.done for event in reader.feed(piece)]
        if done.endswith(b"\n"):
            assert (events, reader.done) == ([b"one"], True)
            assert reader.feed(after) == reader.finish() == []
    assert read(b"data: one\n\n", done) == [b"one"]


@pytest.mark.parametrize("endless", [b"x" * 200, b"data: " + b"x" * 10 + b"\n"], ids=["line", "lines"])
def test_an_event_without_end_is_given_up(endless):
    reader = EventReader(max_bytes=100)
    for _ in range(5):
        assert reader.feed(b"data: " + b"x" * 60 + b"\n\n") == [b"x" * 60]
    with pytest.raises(UpstreamError, match="more than 100 bytes"):
        feed_often(reader, endless)


def feed_often(reader, piece):
    for _ in range(20):
        reader.feed(piece)


LINES = st.lists(
    st.binary(min_size=1, max_size=12)
    .filter(lambda line: b"\n" not in line and b"\r" not in line and line.strip(b" "))
    .filter(lambda line: line.strip(b" ") != b"[DONE]")
)


@given(LINES, st.lists(st.integers(0, 400), max_size=20), st.booleans())
def test_cuts_change_nothing(lines, cuts, crlf):
    end = b"\r\n" if crlf else b"\n"
    stream = b"".join(b"data: " + line + end + end for line in lines)
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    assert read(*(stream[start:stop] for start, stop in pairwise(edges))) == [
        line.strip(b" ") for line in lines
    ]


def test_a_long_line_is_joined_once():
    joins = SimpleNamespace(bytes=0)

    class Counted(bytes):
        def split(self, *args):
            joins.bytes += len(self)
            return super().split(*args)

    line = b"data: " + b"x" * 100_000 + b"\n\n"
    pieces = [Counted(line[start : start + 100]) for start in range(0, len(line), 100)]
    assert [len(event) for event in read(*pieces)] == [100_000]
    assert joins.bytes == len(line)
