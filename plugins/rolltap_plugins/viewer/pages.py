"""The viewer's static files, and what a browser may do with them."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from rolltap import NotFound, Server

ROOT = Path(__file__).parent / "static"

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    # Images that a conversation holds itself; never one from elsewhere, which would tell of the reader.
    "img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    # No text can become markup: the browser refuses it to all but lit-html's own templates.
    "require-trusted-types-for 'script'; trusted-types lit-html"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked for again each time, and answered with 304 until rolltap is updated
}
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def add_pages(server: Server) -> None:
    """Add a route for each file. Anybody may load them."""

    def add(path: str, handler: Handler) -> None:
        server.add_route("GET", path, handler, public=True)

    add("/", _front)
    add("/ui", _to_viewer)
    add("/ui/", _sender(ROOT / "index.html"))
    for file in sorted(ROOT.rglob("*")):
        if file.suffix in TYPES and file.name != "index.html":
            add(f"/ui/{file.relative_to(ROOT).as_posix()}", _sender(file))


async def _front(request: web.Request) -> web.StreamResponse:
    """`GET /`: a browser is led to the viewer."""
    if "text/html" not in request.headers.get("Accept", ""):
        raise NotFound("there is nothing at /; the viewer is at /ui/, and /health says how the server is")
    return await _to_viewer(request)


async def _to_viewer(_: web.Request) -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": "/ui/"})


def _sender(file: Path) -> Handler:
    headers = {**HEADERS, "Content-Type": f"{TYPES[file.suffix]}; charset=utf-8"}

    async def send(_: web.Request) -> web.StreamResponse:
        return web.FileResponse(file, headers=headers)

    return send
