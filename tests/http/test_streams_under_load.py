"""Hundreds of open streams, and readers that don't read: the server's memory stays in bounds."""

import sys

import pytest

from stream_load import bytes_a_stream, growth_by_slow_readers, serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a process's memory is read from /proc")

MOST_BYTES_A_STREAM = 100 * 1024
"""Twice of what `make bench` measures: a guard against a leak, not the measurement."""


@pytest.fixture
async def server():
    async with serving() as served:
        yield served


async def test_an_open_stream_costs_little(server):
    """The dearest way: a session each, and a connection of its own to an upstream."""
    assert await bytes_a_stream(server, 500, model="held", in_session=True) <= MOST_BYTES_A_STREAM


@pytest.mark.parametrize("in_session", [False, True])
async def test_a_slow_reader_slows_the_upstream_and_fills_no_memory(server, in_session):
    _, second, *later = await growth_by_slow_readers(server, 5, in_session=in_session, seconds=5)
    assert max(later) - second < 8 * 2**20
