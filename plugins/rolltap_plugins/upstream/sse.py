"""Server-sent events, read from bytes as they come."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import aiohttp

from rolltap import UpstreamError

DONE = b"[DONE]"
"""The data of the event by which OpenAI, vLLM and SGLang end a stream. Nothing after it is an event."""

MAX_EVENT_BYTES = 256 * 2**20
"""The longest event: the routed experts of a long sequence are tens of megabytes."""

CLOSES_WITHIN_S = 1.0
"""How long a stream may take to end after its `[DONE]`, lest its connection be thrown away."""


class EventReader:
    """Cuts an event stream into its events; only their data counts. `done` once `[DONE]` has come.

    Bytes may be cut anywhere. A line of any length is read in time proportional to its length.
    """

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self.done = False
        self._max_bytes = max_bytes
        self._data: list[bytes] = []
        self._unfinished: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of each event that these bytes complete. Raises `UpstreamError` for an event without end."""
        first, *others = chunk.split(b"\n")
        self._unfinished.append(first)
        self._size += len(chunk)
        if not others:
            self._check_size()
            return []
        lines = [b"".join(self._unfinished) if len(self._unfinished) > 1 else first, *others[:-1]]
        self._unfinished = [others[-1]]
        events = self._events(lines)
        self._size = len(others[-1]) + sum(map(len, self._data))
        self._check_size()
        return events

    def finish(self) -> list[bytes]:
        """The data of an event that the stream's end leaves without the empty line after it."""
        return self._events([b"".join(self._unfinished), b""])

    def _check_size(self) -> None:
        if self._size > self._max_bytes:
            raise UpstreamError(f"the upstream sent an event of more than {self._max_bytes} bytes")

    def _events(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        for line in lines:
            if self.done:
                break
            if line.startswith(b"data:"):
                self._data.append(line[5:].strip(b" \r"))
            elif line in {b"", b"\r"}:
                data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                self._data = []
                if data == DONE:
                    self.done = True
                elif data:
                    events.append(data)
            elif line.startswith(b"error:"):  # llama.cpp's own way to end a stream that failed
                self._data.append(b'{"error":' + line[6:].strip(b" \r") + b"}")
        return events


class EventStream:
    """The events of a response, to be read once; after it `done` says whether `[DONE]` has come."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content
        self._reader = EventReader()

    @property
    def done(self) -> bool:
        """Whether the upstream has said that this was all."""
        return self._reader.done

    async def read(self) -> AsyncGenerator[list[bytes], None]:
        """The data of the events, those that came together in one list."""
        while not self.done:
            data = await self._content.readany()
            yield self._reader.feed(data) if data else self._reader.finish()
            if not data:
                return
        await self._read_to_end()

    async def _read_to_end(self) -> None:
        """Read on to the end, so that the connection can be used again."""
        if not self._content.at_eof():
            with suppress(TimeoutError, aiohttp.ClientError):
                async with asyncio.timeout(CLOSES_WITHIN_S):
                    while await self._content.readany():
                        pass
