"""Connections that cost a server something while they do nothing."""

import asyncio
from urllib.parse import urlsplit

from served import served

CONFIG = """
[[models]]
name = "m"
backends = [{kind = "openai", url = "http://127.0.0.1:9/v1"}]

[store]
kind = "memory"

[server]
idle_timeout_s = 1
"""


async def test_a_connection_without_a_request_is_closed(tmp_path):
    async with served(CONFIG, tmp_path) as server:
        address = urlsplit(server.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        for _ in range(2):  # it is kept between two requests
            writer.write(b"GET /ready HTTP/1.1\r\nHost: h\r\n\r\n")
            assert await reader.readuntil(b"}") != b""
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
