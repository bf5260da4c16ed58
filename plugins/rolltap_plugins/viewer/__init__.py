"""The viewer at `/ui/`: sessions, their forests, and each node's tokens, in a browser.

The pages are static files that anybody may load; they hold no data. What they show comes from `/ui/api/…`, which
needs one of the server's keys where it has any.
"""

from aiohttp import web

from rolltap import Server, hookimpl
from rolltap_plugins.viewer.api import Api
from rolltap_plugins.viewer.pages import add_pages


@hookimpl
def register_routes(app: web.Application, server: Server) -> None:
    """Add the pages and the data that they show."""
    add_pages(server)
    Api(server).add_to(app)
