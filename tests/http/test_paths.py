"""Paths that clients get wrong: an answer that says which is right."""

import openai
import pytest

from rolltap.testing import MODEL, ScriptedTokenBackend


@pytest.fixture
async def server(rolltap_serve, rolltap_tokenizer):
    return await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, lambda ids, sampling: "hi"))


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("POST", "/v1/v1/chat/completions", "/v1/chat/completions"),
        ("POST", "/v1/v1/messages", "/v1/messages"),
        ("GET", "/v1/v1/models", "/v1/models"),
        ("POST", "/{sid}/v1/v1/chat/completions", "/{sid}/v1/chat/completions"),
        ("POST", "/chat/completions", "/v1/chat/completions"),
        ("POST", "/{sid}/chat/completions", "/{sid}/v1/chat/completions"),
        ("POST", "/responses", "/v1/responses"),
        ("POST", "/{sid}/responses", "/{sid}/v1/responses"),
        ("POST", "/messages", "/v1/messages"),
        ("GET", "/models", "/v1/models"),
        ("GET", "/{sid}/models", "/{sid}/v1/models"),
        ("POST", "/v1/chat/completions/", "/v1/chat/completions"),
        ("POST", "/{sid}/v1/messages/", "/{sid}/v1/messages"),
        ("GET", "/v1/models/", "/v1/models"),
        ("GET", "/health/", "/health"),
        ("POST", "/chat/completions/", "/v1/chat/completions"),
    ],
)
async def test_a_wrong_path_is_told_the_right_one(server, method, path, right):
    session = await server.session()
    path, right = (text.replace("{sid}", session) for text in (path, right))
    async with server.http.request(method, path, json={}) as response:
        body = await response.json()
        assert response.status in {404, 405}
    error = body["error"]
    assert f"did you mean {right}?" in error["message"]


@pytest.mark.parametrize("base", ["/v1/v1", "", "/{sid}/v1/v1"])
async def test_the_sdk_with_a_wrong_base_url_says_it(server, base):
    url = server.url + base.replace("{sid}", await server.session())
    async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
        with pytest.raises(openai.APIStatusError, match="did you mean /"):
            await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "a"}])


@pytest.mark.parametrize(
    "path", ["/nothing/here", "/v1/nothing", "/{sid}/v2/messages", "//", "/v1/v1", "/%00/"]
)
async def test_what_is_nowhere_gets_no_hint(server, path):
    async with server.http.post(path.replace("{sid}", await server.session()), json={}) as response:
        assert response.status in {404, 405}
        assert "did you mean" not in (await response.json())["error"]["message"]


async def test_an_unknown_session_is_no_wrong_path(server):
    async with server.http.get("/11111111-1111-4111-8111-111111111111/nodes") as response:
        assert response.status == 404
        assert "did you mean" not in (await response.json())["error"]["message"]
