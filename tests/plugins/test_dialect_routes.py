"""Each converter's plugin brings its own route, with and without a session."""

import pytest
from aiohttp import web

from rolltap.server.public import RunningServer
from rolltap_plugins import anthropic_messages
from rolltap_plugins.openai_dialects import chat, completions, responses


@pytest.mark.parametrize(
    ("plugin", "path"),
    [
        (chat, "/v1/chat/completions"),
        (completions, "/v1/completions"),
        (anthropic_messages, "/v1/messages"),
    ],
)
def test_routes(plugin, path):
    app = web.Application()
    plugin.register_routes(app)
    served = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource}
    assert {("POST", path), ("POST", f"/{{sid}}{path}")} <= served


def test_routes_of_responses_are_more_than_one():
    app = web.Application()
    responses.register_routes(app, RunningServer(app))
    served = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource}
    for prefix in ("", "/{sid}"):
        path = f"{prefix}/v1/responses"
        assert {
            ("POST", path),
            ("POST", f"{path}/input_tokens"),
            ("POST", f"{path}/compact"),
            ("GET", f"{path}/{{reply_id}}"),
            ("DELETE", f"{path}/{{reply_id}}"),
            ("GET", f"{path}/{{reply_id}}/input_items"),
        } <= served
