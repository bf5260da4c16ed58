"""Server-sent events, read from a response as they come."""

from collections.abc import AsyncGenerator

import aiohttp


async def events(content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    """The data of each event of a stream, in order; comments and other fields are left out.

    Lines of any length are read in time proportional to their length: the event that echoes a prompt of 100k
    tokens is one line of nearly a megabyte, more than `StreamReader.readline` takes.
    """
    data: list[bytes] = []
    unfinished: list[bytes] = []
    async for chunk in content.iter_any():
        first, *others = chunk.split(b"\n")
        unfinished.append(first)
        if not others:
            continue
        lines = [b"".join(unfinished), *others[:-1]]
        unfinished = [others[-1]]
        for line in lines:
            text = line.removesuffix(b"\r")
            if text.startswith(b"data:"):
                data.append(text[5:].removeprefix(b" "))
            elif not text and data:
                yield b"\n".join(data)
                data = []
