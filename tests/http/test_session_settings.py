"""What a session can be given when it is made, and what a wrong setting is answered with."""

import uuid

import pytest

from rolltap.testing import MODEL, ScriptedChatBackend, ScriptedTokenBackend

CHAT = {"messages": [{"role": "user", "content": "Hello"}]}


class Narrow(ScriptedTokenBackend):
    """A backend that takes two parameters."""

    parameters = frozenset({"max_tokens", "temperature"})


@pytest.fixture
async def server(rolltap_serve, rolltap_tokenizer):
    return await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, lambda ids, sampling: "Hi."))


@pytest.fixture
async def narrow(rolltap_serve, rolltap_tokenizer):
    return await rolltap_serve(Narrow(rolltap_tokenizer, lambda ids, sampling: "Hi."))


async def test_a_null_is_a_setting_that_was_not_sent(server):
    names = ("tool_parser", "track_tree", "base_url", "model", "sampling", "metadata")
    status, made = await server.post("/sessions/create", dict.fromkeys(names))
    assert status == 200
    assert (made["model_name"], made["tool_parser"], made["base_url"]) == (MODEL, "hermes", None)


async def test_an_empty_base_url_pins_nothing(server):
    status, made = await server.post("/sessions/create", {"base_url": ""})
    assert (status, made["base_url"]) == (200, None)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"tool_parser": 5}, "tool_parser", "expected `str | null`, got `int`"),
        ({"metadata": []}, "metadata", "expected `object"),
        ({"track_tree": 1}, "track_tree", "expected `bool`"),
        ({"tol_parser": "hermes"}, "tol_parser", 'did you mean "tool_parser"?'),
        ({"sampling": {"temperature": "hot"}}, "sampling.temperature", "got `str`"),
        ({"sampling": {"temperature": -1}}, "sampling.temperature", ">= 0"),
        ({"sampling": {"top_p": 1.5}}, "sampling.top_p", "<= 1"),
        ({"sampling": {"n": 0}}, "sampling.n", ">= 1"),
        ({"sampling": {"max_tokens": -5}}, "sampling.max_tokens", ">= 1"),
        ({"sampling": {"max_completion_tokens": 0}}, "sampling.max_tokens", ">= 1"),
        ({"sampling": {"stop": ""}}, "sampling.stop", "empty"),
        ({"sampling": {"stop": ["a", ""]}}, "sampling.stop", "empty"),
        ({"sampling": {"stop": [1]}}, "sampling.stop[0]", "got `int`"),
        ({"sampling": {"stream": True}}, "sampling.stream", "no sampling parameter"),
        ({"sampling": {"messages": []}}, "sampling.messages", "no sampling parameter"),
    ],
)
async def test_a_wrong_setting_is_named_and_nothing_is_made(server, body, param, words):
    status, answer = await server.post("/sessions/create", body)
    assert (status, answer["error"]["param"]) == (400, param)
    assert words in answer["error"]["message"]
    async with server.http.get("/health") as response:
        assert (await response.json())["sessions"] == 0


async def test_a_pin_that_no_backend_takes_is_refused_at_once(narrow):
    status, answer = await narrow.post("/sessions/create", {"sampling": {"temperatur": 1.0}})
    assert (status, answer["error"]["param"]) == (400, "sampling.temperatur")
    assert 'did you mean "temperature"?' in answer["error"]["message"]
    assert (await narrow.post("/sessions/create", {"sampling": {"temperature": 1.0}}))[0] == 200


@pytest.mark.parametrize(
    ("pins", "sampled"),
    [
        ({"temperature": 0.25}, {"temperature": 0.25, "max_tokens": 50, "stop": ["x"]}),
        ({"max_completion_tokens": 7}, {"temperature": 0.9, "max_tokens": 7, "stop": ["x"]}),
        ({"stop": "END"}, {"temperature": 0.9, "max_tokens": 50, "stop": ["END"]}),
        ({"stop_sequences": ["A", "B"]}, {"temperature": 0.9, "max_tokens": 50, "stop": ["A", "B"]}),
        ({"temperature": None}, {"temperature": 0.9, "max_tokens": 50, "stop": ["x"]}),
        (
            {"logit_bias": {"5": 1.5}},
            {"temperature": 0.9, "max_tokens": 50, "stop": ["x"], "logit_bias": {"5": 1.5}},
        ),
    ],
    ids=lambda value: next(iter(value)),
)
async def test_pins_win_over_the_clients_values_and_leave_the_others(server, pins, sampled):
    session = await server.session(sampling=pins)
    asked = CHAT | {"temperature": 0.9, "max_tokens": 50, "stop": "x"}
    await server.post(f"/{session}/v1/chat/completions", asked)
    [node] = await server.nodes(session)
    assert node["metadata"]["sampling"] == sampled


async def test_a_pin_without_a_name_here_goes_beside_the_clients_own(server):
    session = await server.session(sampling={"odd": 1})
    await server.post(f"/{session}/v1/chat/completions", CHAT | {"strange": 2, "odd": 3})
    [node] = await server.nodes(session)
    assert node["metadata"]["sampling"]["extra"] == {"odd": 1, "strange": 2}


async def test_a_session_tells_what_it_is(server):
    session = await server.session(sampling={"top_k": 3}, metadata={"run": "a"}, track_tree=True)
    async with server.http.get(f"/{session}") as response:
        told = await response.json()
    async with server.http.get("/sessions") as response:
        [listed] = (await response.json())["sessions"]
    settings = {"track_tree": True, "sampling": {"top_k": 3}, "metadata": {"run": "a"}}
    assert told == listed | settings


@pytest.mark.parametrize("path", ["/nowhere", "/favicon.ico", "/nothing"])
async def test_what_is_no_session_is_not_found(server, path):
    async with server.http.get(path) as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "session_not_found"


@pytest.mark.parametrize("header", ["Authorization", "x-api-key"])
@pytest.mark.parametrize("path", ["chat/completions", "chat/completions/render", "messages", "completions"])
async def test_an_ended_session_sent_as_the_key_is_no_session_less_request(server, header, path):
    session = await server.session()
    async with server.http.delete(f"/{session}") as response:
        assert response.status == 200
    value = f"Bearer {session}" if header == "Authorization" else session
    body = CHAT | {"max_tokens": 5} | ({"prompt": "x"} if path == "completions" else {})
    async with server.http.post(f"/v1/{path}", json=body, headers={header: value}) as response:
        assert response.status == 404
        assert "unknown" in await response.text()


async def test_any_other_key_opens_a_server_without_keys(server):
    for key in ("sk-anything", "x", str(uuid.uuid1())):
        async with server.http.post(
            "/v1/chat/completions", json=CHAT, headers={"x-api-key": key}
        ) as response:
            assert response.status == 200


async def test_a_servers_key_may_look_like_a_session(rolltap_serve):
    key = str(uuid.uuid4())
    server = await rolltap_serve(ScriptedChatBackend(["Hi."]), config={"server": {"api_keys": [key]}})
    async with server.http.post("/v1/chat/completions", json=CHAT, headers={"x-api-key": key}) as response:
        assert response.status == 200


@pytest.mark.parametrize("body", [b"{", b"x" * 200_000])
async def test_who_asks_is_looked_at_before_what_is_asked(rolltap_serve, body):
    config = {"server": {"api_keys": ["secret"], "max_body_mb": 0.1}}
    server = await rolltap_serve(ScriptedChatBackend(), config=config)
    for path, status in [("/v1/chat/completions", 401), ("/nowhere/v1/messages", 404)]:
        async with server.http.post(path, data=body) as response:
            assert response.status == status
