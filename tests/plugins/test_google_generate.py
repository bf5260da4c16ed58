"""The dialect "google.generate_content" on a real server, asked by Google's own package."""

import json
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import httpx
import pytest
from google import genai
from google.genai import errors, types

from rolltap import (
    BadRequest,
    ChatDelta,
    ChatRequest,
    Completion,
    FilePart,
    ImagePart,
    Message,
    TextPart,
    ToolCall,
    ToolChoice,
)
from rolltap.testing import MODEL, Reply, ScriptedChatBackend, ScriptedTokenBackend, assert_exact
from rolltap_plugins.google_generate import GoogleConverter
from rolltap_plugins.google_generate.requests import State
from rolltap_plugins.google_generate.schemas import json_schema

CONVERTER = GoogleConverter()
CALL = '<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>'
RUN = types.FunctionDeclaration(
    name="run",
    description="runs",
    parameters=types.Schema(type=types.Type.OBJECT, properties={"cmd": types.Schema(type=types.Type.STRING)}),
)
CONFIG: Any = {
    "tools": [types.Tool(function_declarations=[RUN])],
    "system_instruction": "Be brief.",
    "max_output_tokens": 99,
    "automatic_function_calling": {"disable": True},
}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="
HI = [{"role": "user", "parts": [{"text": "hi"}]}]


def decode(**fields):
    return CONVERTER.decode({"model": "m", "contents": HI, **fields})


def decode_contents(*contents):
    return decode(contents=list(contents)).messages


def user(*parts):
    return {"role": "user", "parts": list(parts)}


def model(*parts):
    return {"role": "model", "parts": list(parts)}


@asynccontextmanager
async def google(url, key="unused"):
    # by httpx: with aiohttp the package itself warns of what it does
    over_httpx = {"transport": httpx.AsyncHTTPTransport()}
    options = types.HttpOptions(base_url=url, async_client_args=over_httpx)
    client = genai.Client(api_key=key, http_options=options)
    async with client.aio as asynchronous:
        yield asynchronous
    client.close()


async def answered(client, contents, *, streamed, **config):
    """The parts of the reply, and its last piece."""
    asked: Any = {"model": MODEL, "contents": contents, "config": {**CONFIG, **config}}
    if not streamed:
        reply = await client.models.generate_content(**asked)
        return reply.candidates[0].content.parts, reply
    parts, last = [], None
    async for last in await client.models.generate_content_stream(**asked):
        parts += last.candidates[0].content.parts or []
    return parts, last


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("by_key", [False, True])
async def test_a_rollout_with_a_call_is_one_exact_node(rolltap_serve, rolltap_tokenizer, streamed, by_key):
    backend = ScriptedTokenBackend(rolltap_tokenizer, [CALL, "Two files.", "Bye."])
    server = await rolltap_serve(backend)
    session = await server.session()
    url, key = (server.url, session) if by_key else (f"{server.url}/{session}", "unused")
    async with google(url, key) as client:
        contents: list[Any] = [types.UserContent("what is there?")]
        parts, last = await answered(client, contents, streamed=streamed)
        (call,) = [part.function_call for part in parts if part.function_call]
        assert (call.name, call.args) == ("run", {"cmd": "ls"})
        assert last.candidates[0].finish_reason == types.FinishReason.STOP
        result = types.Part.from_function_response(name="run", response={"output": "a b"})
        contents += [types.ModelContent(parts), types.UserContent([result])]
        parts, last = await answered(client, contents, streamed=streamed)
        assert "".join(part.text or "" for part in parts) == "Two files."
        assert last.usage_metadata.prompt_token_count == len(backend.calls[1].prompt_ids)
        # clients keep the pieces of a stream as turns of their own
        contents += [*(types.ModelContent([part]) for part in parts), types.UserContent("bye")]
        await answered(client, contents, streamed=streamed)
    (node,) = await server.nodes(session)
    assert_exact(node, *reversed(backend.calls))
    assert node["metadata"]["trainable"]
    assert node["metadata"]["dialect"] == "google.generate_content"


@pytest.mark.parametrize("streamed", [False, True])
async def test_googles_own_chat_goes_on(rolltap_serve, rolltap_tokenizer, streamed):
    backend = ScriptedTokenBackend(rolltap_tokenizer, ["One, two.", "Three.", "Four."])
    server = await rolltap_serve(backend)
    session = await server.session()
    async with google(f"{server.url}/{session}") as client:
        chat = client.chats.create(model=MODEL)
        for _ in range(3):
            if streamed:
                async for _piece in await chat.send_message_stream("next"):
                    pass
            else:
                await chat.send_message("next")
    (node,) = await server.nodes(session)
    assert_exact(node, *reversed(backend.calls))


async def test_without_a_session_nothing_is_recorded(rolltap_serve, rolltap_tokenizer):
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, ["Hello."]))
    async with google(server.url) as client:
        reply = await client.models.generate_content(model=MODEL, contents="hi")
    assert reply.text == "Hello."
    assert reply.model_version == MODEL


async def test_the_count_is_what_the_next_call_is_sent(rolltap_serve, rolltap_tokenizer):
    backend = ScriptedTokenBackend(rolltap_tokenizer, ["Hello."])
    server = await rolltap_serve(backend)
    async with google(server.url) as client:
        counted = await client.models.count_tokens(model=MODEL, contents="hi")
        await client.models.generate_content(model=MODEL, contents="hi")
    assert counted.total_tokens == len(backend.calls[0].prompt_ids)


async def test_models_as_googles_clients_list_them(rolltap_serve, rolltap_tokenizer):
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer))
    async with google(server.url) as client:
        assert [each.name async for each in await client.models.list()] == [f"models/{MODEL}"]
        assert (await client.models.get(model=MODEL)).name == f"models/{MODEL}"
        with pytest.raises(errors.ClientError) as caught:
            await client.models.get(model="other")
    assert caught.value.code == 404


@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
async def test_thoughts_are_shown_where_the_client_wants_them(rolltap_serve, shown, streamed):
    backend = ScriptedChatBackend(
        [[ChatDelta(reasoning="hm"), ChatDelta(text="yes"), ChatDelta(finish_reason="stop")]]
    )
    server = await rolltap_serve(backend)
    async with google(server.url) as client:
        parts, _ = await answered(
            client, "hi", streamed=streamed, thinking_config={"include_thoughts": shown}
        )
    thoughts = [part.text for part in parts if part.thought]
    assert thoughts == (["hm"] if shown else [])
    assert "".join(part.text or "" for part in parts if not part.thought) == "yes"


@pytest.mark.parametrize("streamed", [False, True])
async def test_signatures_go_to_the_client_and_back(rolltap_serve, streamed):
    extra = {"extra_content": {"google": {"thought_signature": "QUJD"}}}
    call = ToolCall("run", '{"cmd": "ls"}', "c1", extra)
    backend = ScriptedChatBackend(
        [[ChatDelta(tool_calls=[call]), ChatDelta(finish_reason="tool_calls")], "Done."]
    )
    server = await rolltap_serve(backend)
    session = await server.session()
    async with google(f"{server.url}/{session}") as client:
        contents: list[Any] = [types.UserContent("go")]
        parts, _ = await answered(client, contents, streamed=streamed)
        result = types.Part.from_function_response(name="run", response={"output": "a"})
        await answered(
            client, [*contents, types.ModelContent(parts), types.UserContent([result])], streamed=streamed
        )
    (again,) = backend.requests[1].messages[-2].tool_calls
    assert (again.name, again.id, again.extra) == ("run", "c1", extra)
    assert len(await server.nodes(session)) == 1


async def test_a_stream_without_events_is_a_json_array(rolltap_serve, rolltap_tokenizer):
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, ["One two three."]))
    path = f"/v1beta/models/{MODEL}:streamGenerateContent"
    async with server.http.post(path, json={"contents": HI}) as response:
        assert response.content_type == "application/json"
        pieces = json.loads(await response.text())
    assert len(pieces) > 1
    texts = [part["text"] for piece in pieces for part in piece["candidates"][0]["content"]["parts"]]
    assert "".join(texts) == "One two three."
    assert pieces[-1]["candidates"][0]["finishReason"] == "STOP"


@pytest.mark.parametrize("alt", ["", "?alt=sse"])
async def test_a_failure_in_the_middle_ends_the_stream_in_its_form(rolltap_serve, rolltap_tokenizer, alt):
    reply = Reply(text="One two", error=RuntimeError("lost"))
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, [reply]))
    path = f"/v1beta/models/{MODEL}:streamGenerateContent{alt}"
    async with server.http.post(path, json={"contents": HI}) as response:
        text = await response.text()
    last = json.loads(text.strip().rpartition("data: ")[2]) if alt else json.loads(text)[-1]
    assert (last["error"]["code"], last["error"]["status"]) == (500, "INTERNAL")


async def test_googles_package_raises_what_fails_in_the_middle(rolltap_serve, rolltap_tokenizer):
    reply = Reply(text="One two", error=RuntimeError("lost"))
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, [reply]))
    async with google(server.url) as client:
        with pytest.raises(errors.ServerError):
            await answered(client, "hi", streamed=True)


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/v1beta/models/other:generateContent", {"contents": HI}, 404, "NOT_FOUND"),
        (f"/v1beta/models/{MODEL}:generateContent", {"contents": 1}, 400, "INVALID_ARGUMENT"),
        (f"/v1beta/models/{MODEL}:embedContent", {"content": HI[0]}, 404, "NOT_FOUND"),
        ("/v1beta/cachedContents", {}, 404, "NOT_FOUND"),
        (f"/none/v1beta/models/{MODEL}:generateContent", {"contents": HI}, 404, "NOT_FOUND"),
    ],
)
async def test_errors_have_googles_form(rolltap_serve, rolltap_tokenizer, path, body, status, word):
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer))
    got, answer = await server.post(path, body)
    assert (got, answer["error"]["code"], answer["error"]["status"]) == (status, status, word)


@pytest.mark.parametrize("named", ["x-goog-api-key", "key"])
async def test_a_key_opens_what_belongs_to_no_session(rolltap_serve, rolltap_tokenizer, named):
    backend = ScriptedTokenBackend(rolltap_tokenizer, ["Hello."])
    server = await rolltap_serve(backend, config={"server": {"api_keys": ["secret"]}})
    path = f"/v1beta/models/{MODEL}:generateContent"
    status, answer = await server.post(path, {"contents": HI})
    assert (status, answer["error"]["status"]) == (401, "UNAUTHENTICATED")
    given: Any = {"params": {named: "secret"}} if named == "key" else {"headers": {named: "secret"}}
    async with (
        aiohttp.ClientSession(server.url) as http,
        http.post(path, json={"contents": HI}, **given) as ok,
    ):
        assert ok.status == 200


@pytest.mark.parametrize(("state", "ping"), [(State(sse=True), True), (State(sse=False), False)])
def test_a_ping_says_nothing(state, ping):
    completion = Completion(id="r", model="m", created=0)
    stream = CONVERTER.stream(ChatRequest(state=state), completion)
    begun = stream.ping() + stream.delta(ChatDelta(text="a")) + stream.ping()
    if ping:
        told = json.loads(begun.partition(b"\n\n")[0].removeprefix(b"data: "))
        assert told["candidates"][0]["content"]["parts"] == [{"text": ""}]
    else:
        whole = json.loads(begun + stream.finish(completion))
        assert [piece["candidates"][0]["content"]["parts"] for piece in whole] == [
            [{"text": "a"}],
            [{"text": ""}],
        ]


def test_the_least_request():
    request = decode()
    assert request.messages == (Message(role="user", content="hi"),)
    assert (request.model, request.stream, request.sampling.names()) == ("m", False, set())


def test_a_conversation():
    messages = decode_contents(
        user({"text": "a"}, {"text": "b"}),
        model({"text": "hm", "thought": True}, {"text": "c"}),
        model({"text": "d"}, {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "QUJD"}),
        user({"functionResponse": {"name": "f", "response": {"r": 2}}}, {"text": "and?"}),
    )
    extra = {"extra_content": {"google": {"thought_signature": "QUJD"}}}
    assert messages == (
        Message(role="user", content="a\nb"),
        Message(
            role="assistant",
            content="cd",
            reasoning="hm",
            tool_calls=[ToolCall("f", '{"a":1}', "call_1", extra)],
        ),
        Message(role="tool", content='{"r":2}', tool_call_id="call_1", name="f"),
        Message(role="user", content="and?"),
    )


def test_results_find_their_calls_by_id_else_by_name_in_order():
    called = [
        {"functionCall": {"name": name, **more}} for name, more in (("f", {}), ("f", {}), ("g", {"id": "x"}))
    ]
    given = [
        {"functionResponse": {"name": "g", "id": "x", "response": {"output": "g"}}},
        {"functionResponse": {"name": "f", "response": {"output": "1"}}},
        {"functionResponse": {"name": "f", "response": {"error": "2"}}},
        {"functionResponse": {"name": "h", "response": {"result": "3"}}},
    ]
    results = decode_contents(*HI, model(*called), user(*given))[2:]
    assert [(one.tool_call_id, one.text) for one in results] == [
        ("x", "g"),
        ("call_1", "1"),
        ("call_2", "Error: 2"),
        ("call_h", "3"),
    ]


def test_attachments_and_what_the_provider_ran():
    messages = decode_contents(
        user(
            {"text": "see"},
            {"inlineData": {"mimeType": "image/png", "data": PNG}},
            {"inline_data": {"mime_type": "application/pdf", "data": "_-8="}},
            {"fileData": {"mimeType": "video/mp4", "fileUri": "https://x.test/v.mp4"}},
        ),
        model({"executableCode": {"code": "1+1", "language": "PYTHON"}}, {"codeExecutionResult": {"output": "2"}}),
        user({"text": "z"}),
    )  # fmt: skip
    assert messages[0].content == (
        TextPart("see"),
        ImagePart(f"data:image/png;base64,{PNG}"),
        FilePart(media_type="application/pdf", url="data:application/pdf;base64,/+8="),
        FilePart(media_type="video/mp4", url="https://x.test/v.mp4"),
    )
    assert messages[1].text == "\n[code was run:\n1+1]\n\n[the code gave: 2]\n"


def test_an_image_that_a_tool_gave_follows_its_result():
    part = {"inlineData": {"mimeType": "image/png", "data": PNG}}
    response = {"name": "f", "response": {"output": "seen"}, "parts": [part]}
    messages = decode_contents(
        *HI, model({"functionCall": {"name": "f"}}), user({"functionResponse": response})
    )
    assert [message.role for message in messages] == ["user", "assistant", "tool", "user"]
    assert messages[3].images


def test_sampling_by_googles_names():
    request = decode(
        generationConfig={
            "maxOutputTokens": 20,
            "temperature": 0.5,
            "topP": 0.9,
            "topK": 40.0,
            "seed": 1,
            "stopSequences": ["##"],
            "candidateCount": 2,
            "presencePenalty": 0.1,
            "frequencyPenalty": 0.2,
            "responseLogprobs": True,
            "logprobs": 3,
            "min_p": 0.1,
            "mediaResolution": "LOW",
        },
        safetySettings=[],
    )
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (20, 0.5, 0.9, 40)
    assert (sampling.seed, sampling.stop, sampling.n, sampling.top_logprobs) == (1, ("##",), 2, 3)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.1, 0.2)
    assert sampling.extra == {"minP": 0.1}


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"responseMimeType": "application/json"}, {"type": "json_object"}),
        (
            {"responseMimeType": "application/json", "responseSchema": {"type": "OBJECT"}},
            {"type": "json_schema", "json_schema": {"name": "output", "schema": {"type": "object"}}},
        ),
        (
            {"responseMimeType": "application/json", "responseJsonSchema": {"type": "array"}},
            {"type": "json_schema", "json_schema": {"name": "output", "schema": {"type": "array"}}},
        ),
        ({"responseMimeType": "text/plain"}, None),
    ],
)
def test_structured_output(config, wanted):
    assert decode(generationConfig=config).sampling.response_format == wanted


@pytest.mark.parametrize(
    ("thinking", "kwargs", "upstream"),
    [
        ({}, {}, {}),
        ({"thinkingBudget": 0}, {"enable_thinking": False}, {}),
        ({"thinkingBudget": -1}, {}, {}),
        ({"thinkingLevel": "HIGH"}, {}, {"reasoning_effort": "high"}),
    ],
)
def test_thinking(thinking, kwargs, upstream):
    request = decode(generationConfig={"thinkingConfig": thinking})
    assert (request.template_kwargs, request.upstream) == (kwargs, upstream)


def test_googles_schemas_are_json_schemas():
    google_s = {
        "type": "OBJECT",
        "properties": {
            "type": {"type": "STRING", "nullable": True, "maxLength": "5"},
            "b": {"type": "ARRAY", "items": {"anyOf": [{"type": "INTEGER"}, {"type": "NUMBER"}]}},
        },
        "propertyOrdering": ["type"],
        "required": ["type"],
    }
    assert json_schema(google_s) == {
        "type": "object",
        "properties": {
            "type": {"type": ["string", "null"], "maxLength": 5},
            "b": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "number"}]}},
        },
        "required": ["type"],
    }


DECLARED = [{"functionDeclarations": [{"name": "f"}, {"name": "g"}, {"name": "h"}]}]


@pytest.mark.parametrize(
    ("calling", "choice", "names"),
    [
        ({}, ToolChoice(), "fgh"),
        ({"mode": "AUTO"}, ToolChoice(), "fgh"),
        ({"mode": "VALIDATED"}, ToolChoice(), "fgh"),
        ({"mode": "NONE"}, ToolChoice(mode="none"), "fgh"),
        ({"mode": "ANY"}, ToolChoice(mode="required"), "fgh"),
        ({"mode": "ANY", "allowedFunctionNames": ["f"]}, ToolChoice(mode="named", name="f"), "fgh"),
        ({"mode": "any", "allowedFunctionNames": ["f", "g"]}, ToolChoice(mode="required"), "fg"),
    ],
)
def test_which_tools_may_be_called(calling, choice, names):
    request = decode(tools=DECLARED, toolConfig={"functionCallingConfig": calling})
    assert request.tool_choice == choice
    assert [tool["function"]["name"] for tool in request.tools] == list(names)


@pytest.mark.parametrize("kind", ["googleSearch", "codeExecution", "urlContext", "google_search"])
def test_a_request_left_with_no_tool_is_refused_by_name(kind, caplog):
    with pytest.raises(BadRequest, match="none of them works here"):
        decode(tools=[{kind: {}}])
    with caplog.at_level("INFO"):
        assert len(decode(tools=[{kind: {}}, *DECLARED]).tools) == 3
    assert "is left out" in caplog.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"contents": []}, "contents"),
        ({"contents": [{"role": "tester", "parts": []}]}, "contents[0].role"),
        ({"contents": [user({})]}, "contents[0].parts[0]"),
        ({"contents": [user({"inlineData": {"data": "AA=="}})]}, "contents[0].parts[0].inlineData"),
        ({"contents": [user({"functionResponse": {}})]}, "contents[0].parts[0].functionResponse.name"),
        ({"contents": [model({"functionCall": {}})]}, "contents[0].parts[0].functionCall.name"),
        ({"contents": [model({"inlineData": {}})]}, "contents[0].parts[0]"),
        ({"cachedContent": "c"}, "cachedContent"),
        ({"tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "toolConfig.functionCallingConfig"),
        ({"generationConfig": {"responseModalities": ["IMAGE"]}}, "generationConfig.responseModalities"),
        ({"generationConfig": {"responseMimeType": "text/html"}}, "generationConfig.responseMimeType"),
    ],
)
def test_what_is_wrong_is_named(fields, param):
    with pytest.raises(BadRequest) as caught:
        decode(**fields)
    assert caught.value.info.param == param


def test_a_begun_answer_is_gone_on_from():
    assert decode(contents=[*HI, model({"text": "My colour is"})]).continues
    assert not decode().continues
