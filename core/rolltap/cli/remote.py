"""What `rolltap tail` and `rolltap show` have in common: asking a server, and showing what it said in a terminal."""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import click
import orjson

from rolltap.cli.options import DEFAULT_URL

_Command = TypeVar("_Command", bound=Callable[..., Any])
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]"
)


def server_options(command: _Command) -> _Command:
    """The options that say which server is asked."""
    command = click.option(
        "--api-key", envvar="ROLLTAP_API_KEY", help="The server's key, where it has some."
    )(command)
    return click.option("--url", default=DEFAULT_URL, show_default=True, help="The server.")(command)


class Remote:
    """A server that is asked over HTTP."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url

    async def get(self, path: str, **query: str) -> dict[str, Any]:
        """The JSON at a path. Raises `click.ClickException` with what the server says against it."""
        async with self._http.get(path, params=query) as response:
            await self._check(response)
            return dict(await response.json())

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """What `GET /events` tells, until the server ends the stream; the first, `{}`, when it has begun."""
        async with self._http.get("/events", timeout=aiohttp.ClientTimeout(total=None)) as response:
            await self._check(response)
            yield {}
            async for event in _read_events(response.content):
                yield event

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.ok:
            return
        try:
            message = (await response.json())["error"]["message"]
        except (aiohttp.ContentTypeError, ValueError, KeyError, TypeError):
            message = f"HTTP {response.status} at {response.url.path}; is that a rolltap server?"
        raise click.ClickException(f"{self._url}: {message}")


@asynccontextmanager
async def connected(url: str, api_key: str | None) -> AsyncIterator[Remote]:
    """A server to ask. Raises `click.ClickException` where nobody answers."""
    if not url.startswith(("http://", "https://")):
        raise click.ClickException(f"--url {url}: that is no URL; write it as {DEFAULT_URL}")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        async with aiohttp.ClientSession(url, headers=headers) as http:
            yield Remote(http, url)
    except aiohttp.ClientConnectionError as error:
        raise click.ClickException(
            f"no rolltap answers at {url} ({error}); start one with `rolltap serve`, or say where it is with --url"
        ) from error


async def _read_events(content: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a stream of server-sent events, however long their lines are."""
    buffer = bytearray()
    async for chunk in content.iter_any():
        buffer += chunk
        while (end := buffer.find(b"\n\n")) >= 0:
            lines = bytes(buffer[:end]).split(b"\n")
            del buffer[: end + 2]
            for line in lines:
                if line.startswith(b"data: "):
                    yield orjson.loads(line[6:])


def visible(text: str) -> str:
    """A text whose control characters can be seen and do nothing: what a model writes must not steer the terminal."""
    return _CONTROLS.sub(lambda found: f"⟦U+{ord(found[0]):04X}⟧", text)


def one_line(text: str, most: int = 120) -> str:
    """The beginning of a text, on one line."""
    line = visible(" ".join(text[: 4 * most].split()))
    return line if len(line) <= most and len(text) <= 4 * most else line[: most - 1] + "…"


def text_of(message: Mapping[str, Any]) -> str:
    """A message's text, whether its content is a text, or parts of which some are texts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(part.get("text", f"[{part['type']}]") for part in content or ())
