"""Each converter's plugin brings its own route, with and without a session."""

import pytest
from aiohttp import web

from rolltap_plugins import anthropic_messages
from rolltap_plugins.openai_dialects import chat, completions, responses


@pytest.mark.parametrize(
    ("plugin", "path"),
    [
        (chat, "/v1/chat/completions"),
        (completions, "/v1/completions"),
        (responses, "/v1/responses"),
        (anthropic_messages, "/v1/messages"),
    ],
)
def test_routes(plugin, path):
    app = web.Application()
    plugin.register_routes(app)
    served = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource}
    assert {("POST", path), ("POST", f"/{{sid}}{path}")} <= served
