"""What a client most likely meant that asked for a path which is not there: clients differ in where `/v1` belongs."""

from collections.abc import Iterator

from aiohttp import web


async def hint(request: web.Request) -> str:
    """Words that name the right path, to be put behind an error's message; "" where nobody knows one."""
    for path in _candidates(request.path):
        meant = await request.app.router.resolve(request.clone(rel_url=path))
        if meant.http_exception is None:
            return f"; did you mean {path}? {_WHY}"
    return ""


_WHY = "A client's base URL ends in /v1 for OpenAI's SDKs, and before it for Anthropic's."


def doubled(request: web.Request) -> str:
    """The path with one `/v1` in place of two at its beginning; "" where there are no two."""
    return request.path.removeprefix("/v1") if request.path.startswith("/v1/v1/") else ""


def _candidates(path: str) -> Iterator[str]:
    """Other spellings of a path: without a slash at the end, without `/v1` twice, with it where it is missing."""
    plain = path.rstrip("/")
    while "/v1/v1/" in f"{plain}/":
        plain = f"{plain}/".replace("/v1/v1/", "/v1/", 1).rstrip("/")
    if plain and plain != path:
        yield plain
    if "/v1" not in plain:
        first, _, rest = plain.removeprefix("/").partition("/")
        yield f"/v1{plain}"
        if rest:
            yield f"/{first}/v1/{rest}"
