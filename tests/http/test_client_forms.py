"""What belongs to no dialect's route is answered in the form of the client that asks: lists of models, unknown paths."""

import anthropic
import openai
import pytest

from rolltap.testing import MODEL, ScriptedTokenBackend

ANTHROPIC = {"anthropic-version": "2023-06-01"}


@pytest.fixture
async def server(rolltap_serve, rolltap_tokenizer):
    return await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer))


async def answer(server, path, headers=None, method="GET"):
    async with server.http.request(method, path, headers=headers) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("in_session", [False, True])
async def test_anthropics_clients_get_its_list_of_models(server, in_session):
    base = f"{server.url}/{await server.session()}" if in_session else server.url
    async with anthropic.AsyncAnthropic(base_url=base, api_key="x", max_retries=0) as client:
        page = await client.models.list()
        assert [(one.id, one.display_name, one.type) for one in page.data] == [(MODEL, MODEL, "model")]
        assert not page.has_next_page()
        assert (await client.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(anthropic.NotFoundError) as caught:
            await client.models.retrieve("other")
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["type"] == "not_found_error"


async def test_openais_clients_get_theirs(server):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        assert [one.id async for one in client.models.list()] == [MODEL]
        with pytest.raises(openai.NotFoundError) as caught:
            await client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/messages/batches", 404),
        ("GET", "/v1/files", 404),
        ("GET", "/v1/messages", 405),
        ("GET", "/none/v1/models", 404),
    ],
)
async def test_unknown_routes_are_told_in_anthropics_form(server, method, path, status):
    got, body = await answer(server, path, ANTHROPIC, method)
    assert (got, body["type"]) == (status, "error")
    assert body["request_id"].startswith("req_")
    got, body = await answer(server, path, method=method)
    assert got == status
    assert "type" not in body
    assert body["error"]["type"] == "invalid_request_error"
