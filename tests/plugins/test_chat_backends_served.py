"""Both backends that ask somebody else's server, behind every dialect, asked by the real SDKs."""

import asyncio
import re
from typing import Any

import anthropic
import openai
import pytest

from rolltap.testing import MODEL
from scripted_openai import (
    CUT,
    DONE,
    HANG,
    USAGE,
    Heard,
    Refusal,
    ask,
    backend_table,
    call,
    chunk,
    completion,
    envelope,
    in_chunks,
    scripted_upstream,
)

pytestmark = pytest.mark.usefixtures("key")

KINDS = ["openai", "anyllm"]
DIALECTS = ["chat", "messages", "responses"]
ENDED = {"chat": "stop", "messages": "end_turn", "responses": "completed"}
CALLED = {"chat": "tool_calls", "messages": "tool_use", "responses": "completed"}
PARIS = '{"city": "Paris"}'


@pytest.fixture
def key(monkeypatch):
    monkeypatch.setenv("TEST_KEY", "sk-upstream")


@pytest.fixture
async def upstream():
    async with scripted_upstream() as running:
        yield running


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
async def server(rolltap_serve, upstream, kind):
    return await rolltap_serve(
        config={"models": [{"name": MODEL, "backends": [backend_table(kind, upstream)]}]}
    )


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
class TestEveryDialect:
    async def test_text_and_usage(self, server, upstream, dialect, stream):
        usage = {**USAGE, "prompt_tokens_details": {"cached_tokens": 4}}
        streamed = [*in_chunks("Hel", "lo")[:-2], envelope("chat.completion.chunk", [], usage=usage), DONE]
        upstream.script = [streamed if stream else completion({"content": "Hello"}, usage=usage)]
        heard = await ask(server.url, dialect, stream=stream, tools=False)
        assert (heard.text, heard.finish, heard.calls) == ("Hello", ENDED[dialect], [])
        assert (heard.prompt_tokens, heard.output_tokens, heard.cached_tokens) == (12, 5, 4)
        (sent,) = upstream.requests
        assert (sent["model"], sent["messages"]) == ("big", [{"role": "user", "content": "hi"}])
        assert "tools" not in sent
        assert sent.get("stream_options") == ({"include_usage": True} if stream else None)
        assert upstream.headers[0]["authorization"] == "Bearer sk-upstream"

    async def test_thinking_text_and_calls(self, server, upstream, dialect, stream):
        calls = [
            {"id": f"call_{at}", "type": "function", "function": {"name": "weather", "arguments": PARIS}}
            for at in range(2)
        ]
        upstream.script = [
            [
                chunk({"role": "assistant", "content": None}),
                chunk({"reasoning_content": "Hm"}),
                chunk({"reasoning_content": "m."}),
                chunk({"content": "Look: "}),
                call(0, "weather", "", id="call_0"),
                call(0, arguments=PARIS[:5]),
                call(0, arguments=PARIS[5:]),
                call(1, "weather", PARIS, id="call_1"),
                chunk(finish="tool_calls"),
                DONE,
            ]
            if stream
            else completion(
                {"content": "Look: ", "reasoning_content": "Hmm.", "tool_calls": calls},
                "tool_calls",
                usage=USAGE,
            )
        ]
        heard = await ask(server.url, dialect, stream=stream)
        assert (heard.reasoning, heard.text) == ("Hmm.", "Look: ")
        assert heard.calls == [("weather", PARIS)] * 2
        assert heard.finish == CALLED[dialect]

    async def test_a_refusal_in_the_callers_words(self, server, upstream, dialect, stream):
        error = {"message": "slow down", "type": "rate_limit_error", "code": "rate_limit_exceeded"}
        upstream.script = [Refusal(429, {"error": error}, {"retry-after": "7"})]
        sdk = anthropic if dialect == "messages" else openai
        with pytest.raises(sdk.RateLimitError, match="slow down") as caught:
            await ask(server.url, dialect, stream=stream)
        assert caught.value.response.headers["retry-after"] == "7"
        assert caught.value.response.headers["x-request-id"].startswith("req_")


# What a stream's chunks are after the first, and what a client must have heard by the end.
FAULTS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "two named calls back to back, all at index 0": (
        [call(0, "a", "{}", id="1"), call(0, "b", '{"x": 1}', id="2"), chunk(finish="tool_calls")],
        {"calls": [("a", "{}"), ("b", '{"x": 1}')]},
    ),
    "a tool after text is call 0": (
        [chunk({"content": "t"}), call(1, "a", "{}", id="1"), chunk(finish="tool_calls")],
        {"text": "t", "calls": [("a", "{}")]},
    ),
    "calls though the reason is stop": (
        [call(0, "a", "{}", id="1"), chunk(finish="stop")],
        {"calls": [("a", "{}")]},
    ),
    "the deprecated reason": (
        [call(0, "a", "{}", id="1"), chunk(finish="function_call")],
        {"calls": [("a", "{}")]},
    ),
    "interleaved fragments": (
        [
            call(0, "a", '{"k"', id="1"),
            call(1, "b", '{"l"', id="2"),
            call(0, arguments=": 1}"),
            call(1, arguments=": 2}"),
            chunk(finish="tool_calls"),
        ],
        {"calls": [("a", '{"k": 1}'), ("b", '{"l": 2}')]},
    ),
    "text and a fragment in one chunk": (
        [
            call(0, "a", '{"', id="1"),
            chunk({"content": "\n", "tool_calls": [{"index": 0, "function": {"arguments": 'k": 1}'}}]}),
            chunk(finish="tool_calls"),
        ],
        {"text": "\n", "calls": [("a", '{"k": 1}')]},
    ),
    "the first chunk after thinking": (
        [chunk({"reasoning": "Hm."}), chunk({"content": "A"}), chunk({"content": "B"}), chunk(finish="stop")],
        {"reasoning": "Hm.", "text": "AB"},
    ),
    "thinking under both names": (
        [
            chunk({"reasoning": "Hm.", "reasoning_content": "Hm."}),
            chunk({"content": "A"}),
            chunk(finish="stop"),
        ],
        {"reasoning": "Hm.", "text": "A"},
    ),
    "a name that comes late": (
        [
            call(0, "", '{"k"', id="1"),
            call(0, "a", ": 1"),
            call(0, arguments="}"),
            chunk(finish="tool_calls"),
        ],
        {"calls": [("a", '{"k": 1}')]},
    ),
    "arguments in the last chunk only": (
        [
            call(0, "a", id="1"),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"k": 1}'}}]}, "tool_calls"),
        ],
        {"calls": [("a", '{"k": 1}')]},
    ),
    "no arguments at all": ([call(0, "a", id="1"), chunk(finish="tool_calls")], {"calls": [("a", "{}")]}),
    "chunks without choices": (
        [envelope("chat.completion.chunk", []), chunk({"content": "A"}), chunk(finish="stop")],
        {"text": "A"},
    ),
    "usage beside an empty delta": (
        [chunk({"content": "A"}), chunk({}, "stop", usage=USAGE)],
        {"text": "A", "prompt_tokens": 12, "output_tokens": 5},
    ),
    "usage in every chunk": (
        [
            chunk({"content": "A"}, usage={**USAGE, "completion_tokens": 1}),
            chunk({"content": "B"}, usage={**USAGE, "completion_tokens": 2}),
            chunk({}, "stop", usage=USAGE),
        ],
        {"text": "AB", "prompt_tokens": 12, "output_tokens": 5},
    ),
    "a length that wins over calls": (
        [call(0, "weather", '{"city": "P"}', id="1"), chunk(finish="length")],
        {"calls": [("weather", '{"city": "P"}')], "finish": {"chat": "length", "messages": "max_tokens"}},
    ),
    "a refusal": (
        [chunk({"refusal": "I can't."}), chunk(finish="stop")],
        {"text": "I can't.", "finish": {"chat": "content_filter", "messages": "refusal"}},
    ),
    "a filter": (
        [chunk({"content": "A"}), chunk(finish="content_filter")],
        {"text": "A", "finish": {"chat": "content_filter", "messages": "refusal"}},
    ),
}


@pytest.mark.parametrize("dialect", ["chat", "messages"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_faults_of_streams(server, upstream, dialect, fault):
    chunks, expected = FAULTS[fault]
    upstream.script = [[chunk({"role": "assistant", "content": ""}), *chunks, DONE]]
    if fault in {"a length that wins over calls", "a filter", "a refusal"} and dialect == "chat":
        # The SDK's accumulating helper raises for these two reasons, as it does with OpenAI itself.
        heard = await _by_chunks(server.url)
    else:
        heard = await ask(server.url, dialect, stream=True)
    ends = CALLED if expected.get("calls") else ENDED
    for name, value in {"finish": ends, **expected}.items():
        assert getattr(heard, name) == (value[dialect] if name == "finish" else value), name


async def _by_chunks(base):
    heard = Heard()
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="x", max_retries=0) as client:
        asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}
        async for each in await client.chat.completions.create(**asked):
            (choice,) = each.choices
            heard.text += choice.delta.content or ""
            heard.finish = choice.finish_reason or heard.finish
            for fragment in choice.delta.tool_calls or ():
                heard.calls.append((fragment.function.name, fragment.function.arguments))
    return heard


async def test_malformed_arguments_are_kept(server, upstream):
    for dialect in ("chat", "messages"):
        upstream.script = [[call(0, "a", '{"k": ', id="1"), chunk(finish="tool_calls"), DONE]]
        if dialect == "chat":
            heard = await _by_chunks(server.url)
            assert heard.calls == [("a", '{"k": ')]
        else:
            heard = await ask(server.url, dialect, stream=True)
            assert heard.calls == []
            assert '{"k": ' in heard.text


async def test_a_matched_stop_string_is_told_of(server, upstream):
    upstream.script = [
        [chunk({"content": "A"}), chunk(finish="stop", stop_reason="END"), DONE],
        completion({"content": "A"}),
    ]
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="x", max_retries=0) as client:
        asked: Any = {
            "model": MODEL,
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "hi"}],
            "stop_sequences": ["END"],
        }
        async with client.messages.stream(**asked) as events:
            answer = await events.get_final_message()
        assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "END")
        assert (await client.messages.create(**asked)).stop_reason == "end_turn"
    assert upstream.requests[0]["stop"] == ["END"]


async def test_unknown_parameters_reach_the_upstream(server, upstream):
    upstream.script = [completion({"content": "A"})]
    more = {"top_k": 7, "guided_regex": "a+", "chat_template_kwargs": {"enable_thinking": False}, "n": 1}
    body = {"messages": [{"role": "user", "content": "hi"}], "seed": 3, "logit_bias": {"5": 1.0}, **more}
    status, _ = await server.post("/v1/chat/completions", body)
    sent = upstream.requests[0]
    assert status == 200
    assert {name: sent[name] for name in ("top_k", "guided_regex", "chat_template_kwargs", "seed")} == {
        "top_k": 7,
        "guided_regex": "a+",
        "chat_template_kwargs": {"enable_thinking": False},
        "seed": 3,
    }
    assert sent["logit_bias"] == {"5": 1.0}


@pytest.mark.parametrize("stream", [False, True])
async def test_two_choices_with_logprobs(server, upstream, stream):
    def logprobs(token):
        top = [{"token": "x", "logprob": -2.0, "bytes": [120]}]
        return {"content": [{"token": token, "logprob": -0.5, "bytes": None, "top_logprobs": top}]}

    if stream:
        upstream.script = [
            [
                chunk({"content": "B"}, index=1, logprobs=logprobs("B")),
                chunk({"content": "A"}, index=0, logprobs=logprobs("A")),
                chunk(finish="stop", index=0),
                chunk(finish="length", index=1),
                DONE,
            ]
        ]
    else:
        choices = [
            {
                "index": at,
                "message": {"role": "assistant", "content": text},
                "finish_reason": reason,
                "logprobs": logprobs(text),
            }
            for at, (text, reason) in enumerate([("A", "stop"), ("B", "length")])
        ]
        upstream.script = [envelope("chat.completion", choices)]
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "n": 2,
        "logprobs": True,
        "top_logprobs": 1,
        "stream": stream,
    }
    session = await server.session()
    async with server.http.post(f"/{session}/v1/chat/completions", json=body) as response:
        text = await response.text()
    assert {name: upstream.requests[0][name] for name in ("n", "logprobs", "top_logprobs")} == {
        "n": 2,
        "logprobs": True,
        "top_logprobs": 1,
    }
    assert text.count('"logprob":-0.5') == 2
    assert text.count('"logprob":-2.0') == 2
    nodes = await server.nodes(session)
    assert [node["metadata"]["finish_reason"] for node in nodes] == ["stop", "length"]
    for node, end in zip(nodes, "AB", strict=True):
        assert node["full_text"].rstrip().endswith(end)
        assert (node["metadata"]["trainable"], node["tokens"]) == (False, [])


REFUSALS = [
    (401, {"error": {"message": "bad key"}}, 401, "invalid_api_key", "authentication_error"),
    (402, {"error": {"message": "pay"}}, 402, "insufficient_quota", "billing_error"),
    (403, {"error": {"message": "not you"}}, 403, "permission_denied", "permission_error"),
    (404, {"error": {"message": "the model `big` does not exist", "code": "model_not_found"}}, 404, "model_not_found", "not_found_error"),
    (400, {"error": {"message": "maximum context length is 8 tokens", "code": "context_length_exceeded"}}, 400, "context_length_exceeded", "invalid_request_error"),
    (400, {"error": {"message": "no such field"}}, 400, "invalid_request", "invalid_request_error"),
    (422, {"detail": [{"msg": "field required"}]}, 422, "unprocessable_entity", "invalid_request_error"),
    (500, {"error": {"message": "boom"}}, 500, "api_error", "api_error"),
    (503, {"error": {"message": "busy"}}, 503, "overloaded", "overloaded_error"),
    (529, {"error": {"message": "busy"}}, 503, "overloaded", "overloaded_error"),
]  # fmt: skip


@pytest.mark.parametrize("dialect", ["chat", "messages"])
@pytest.mark.parametrize("stream", [False, True])
async def test_ids_of_calls_are_told_apart_though_the_upstream_counts_anew(server, upstream, dialect, stream):
    """In one reply, and in the next one of the same conversation."""
    function = {"name": "weather", "arguments": PARIS}
    whole = completion(
        {"content": None, "tool_calls": [{"id": "call_0", "function": function}] * 2}, "tool_calls"
    )
    pieces = [call(at, "weather", PARIS, id="call_0", type="function") for at in range(2)]
    for each in whole["choices"][0]["message"]["tool_calls"]:
        each["type"] = "function"
    upstream.script = [[*pieces, chunk(finish="tool_calls"), DONE] if stream else whole] * 2
    path, tool = "/v1/chat/completions", {"type": "function", "function": {"name": "weather"}}
    if dialect == "messages":
        path, tool = "/v1/messages", {"name": "weather"}
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    seen: list[str] = []
    for _ in range(2):
        asked = {"messages": messages, "max_tokens": 9, "tools": [tool], "stream": stream}
        async with server.http.post(path, json=asked) as response:
            ids = re.findall(r'"id": ?"(call_\w+)"', await response.text())
        assert len(ids) == 2
        seen += ids
        messages = [*messages, *_called(dialect, ids), *messages]
    assert len(set(seen)) == 4
    assert seen[0] == "call_0"
    if dialect == "chat":
        assert [each["id"] for each in upstream.requests[1]["messages"][1]["tool_calls"]] == seen[:2]


def _called(dialect, ids):
    """The assistant's calls and their results, as clients send them back."""
    if dialect == "messages":
        uses = [{"type": "tool_use", "id": each, "name": "weather", "input": {}} for each in ids]
        results = [{"type": "tool_result", "tool_use_id": each, "content": "sun"} for each in ids]
        return [{"role": "assistant", "content": uses}, {"role": "user", "content": results}]
    function = {"name": "weather", "arguments": "{}"}
    calls = [{"id": each, "type": "function", "function": function} for each in ids]
    results = [{"role": "tool", "tool_call_id": each, "content": "sun"} for each in ids]
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *results]


@pytest.mark.parametrize(("status", "body", "to_openai", "code", "to_anthropic"), REFUSALS)
async def test_refusals_keep_their_meaning(server, upstream, status, body, to_openai, code, to_anthropic):
    upstream.script = [Refusal(status, body)] * 2
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    got, answer = await server.post("/v1/chat/completions", chat)
    assert (got, answer["error"]["code"]) == (to_openai, code), answer
    got, answer = await server.post("/v1/messages", {**chat, "max_tokens": 5})
    assert answer["error"]["type"] == to_anthropic
    if code == "context_length_exceeded":
        assert "prompt is too long" in answer["error"]["message"]


UNREADABLE = {
    "no JSON": "oops",
    "no object": [1],
    "no reply": {"message": "welcome"},
    "an unfinished reply": envelope("chat.completion", [{"index": 0, "message": {"content": 5}}]),
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("answer", UNREADABLE)
async def test_an_answer_that_is_no_reply_is_the_upstreams_fault(server, upstream, dialect, answer):
    upstream.script = [Refusal(200, UNREADABLE[answer])]
    sdk = anthropic if dialect == "messages" else openai
    with pytest.raises(sdk.InternalServerError) as caught:
        await ask(server.url, dialect, stream=False)
    assert caught.value.status_code == 502
    kind = "api_error" if dialect == "messages" else "server_error"
    assert caught.value.response.json()["error"]["type"] == kind


@pytest.mark.parametrize(
    ("name", "value"), [("reasoning_effort", "bogus"), ("user", 5), ("extra_body", 3), ("extra_headers", 3)]
)
async def test_a_wrong_parameter_is_never_a_500(server, upstream, name, value):
    upstream.script = [completion({"content": "A"})]
    asked = {"messages": [{"role": "user", "content": "hi"}], name: value}
    status, body = await server.post("/v1/chat/completions", asked)
    if status == 200:  # an upstream's to judge
        assert upstream.requests[0][name] == value
    else:
        assert (status, body["error"]["param"]) == (400, name)


async def test_a_page_in_place_of_an_error(server, upstream):
    upstream.script = [Refusal(502, "<html>Bad Gateway</html>", {"content-type": "text/html"})]
    status, body = await server.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}
    )
    assert status == 502
    assert body["error"]["code"] in {"bad_upstream_response", "upstream_unreachable"}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("end", [CUT, None])
async def test_a_stream_that_ends_too_early(server, upstream, dialect, end):
    """Whatever the way in which it breaks off, the client is told: a half answer must not look whole."""
    upstream.script = [[chunk({"content": "Hel"}), 0.05, *([end] if end else [])]]
    if dialect == "chat":
        with pytest.raises(openai.APIError):
            await ask(server.url, dialect, stream=True)
    elif dialect == "messages":
        with pytest.raises(anthropic.APIError):
            await ask(server.url, dialect, stream=True)
    else:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
            events = [
                each async for each in await client.responses.create(model=MODEL, input="hi", stream=True)
            ]
        assert events[-1].type == "response.failed"


async def test_a_stream_that_says_it_is_done_but_not_why(server, upstream, kind):
    upstream.script = [[chunk({"content": "Hel"}), DONE]]
    if kind == "openai":
        heard = await ask(server.url, "chat", stream=True)
        assert (heard.text, heard.finish) == ("Hel", "stop")
    else:  # any-llm does not tell this from a stream that broke off
        with pytest.raises(openai.APIError, match="finish reason"):
            await ask(server.url, "chat", stream=True)


async def test_an_error_inside_a_stream(server, upstream):
    error = {"message": "the engine died", "type": "server_error", "code": 500}
    upstream.script = [[chunk({"content": "Hel"}), {"error": error}]] * 2
    session = await server.session()
    with pytest.raises(openai.APIError, match="the engine died"):
        await ask(f"{server.url}/{session}", "chat", stream=True)
    with pytest.raises(anthropic.APIStatusError, match="the engine died"):
        await ask(f"{server.url}/{session}", "messages", stream=True)


async def test_an_upstream_that_nobody_listens_at(rolltap_serve, upstream, kind):
    table = {**backend_table(kind, upstream), "api_base": "http://127.0.0.1:9/v1"}
    server = await rolltap_serve(config={"models": [{"name": MODEL, "backends": [table]}]})
    status, body = await server.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}
    )
    assert (status, body["error"]["code"]) == (502, "upstream_unreachable")


async def test_a_client_that_leaves_stops_the_upstream(server, upstream):
    upstream.script = [[chunk({"content": "Hel"}), HANG]]
    session = await server.session()
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with server.http.post(f"/{session}/v1/chat/completions", json=body) as response:
        while b"Hel" not in await response.content.readline():
            pass
        response.close()
    await asyncio.wait_for(upstream.left.wait(), 5)
    for _ in range(50):
        if nodes := await server.nodes(session):
            break
        await asyncio.sleep(0.02)
    assert nodes[0]["metadata"]["delivery"] == "aborted"
    assert nodes[0]["full_text"].rstrip().endswith("Hel")


async def test_chunks_are_passed_on_as_they_come(server, upstream):
    upstream.script = [[chunk({"content": "A"}), 0.4, chunk({"content": "B"}), chunk(finish="stop"), DONE]]
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    loop = asyncio.get_running_loop()
    at = {}
    async with server.http.post("/v1/chat/completions", json=body) as response:
        async for line in response.content:
            for letter in "AB":
                if f'"content":"{letter}"'.encode() in line:
                    at[letter] = loop.time()
    assert at["B"] - at["A"] > 0.3


async def test_a_tool_result_goes_back_and_extends_the_node(server, upstream):
    made = {
        "id": "call_9",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city":"Paris"}'},
    }
    upstream.script = [
        completion({"content": None, "tool_calls": [made]}, "tool_calls"),
        completion({"content": "Sunny."}),
    ]
    session = await server.session()
    async with anthropic.AsyncAnthropic(
        base_url=f"{server.url}/{session}", api_key="x", max_retries=0
    ) as client:
        asked: Any = {
            "model": MODEL,
            "max_tokens": 9,
            "tools": [{"name": "weather", "input_schema": {"type": "object"}}],
        }
        messages: list[Any] = [{"role": "user", "content": "hi"}]
        first = await client.messages.create(messages=messages, **asked)
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}
        result = {
            "type": "tool_result",
            "tool_use_id": first.content[0].id,
            "is_error": True,
            "content": [{"type": "text", "text": "no"}, image],
        }
        messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        last = await client.messages.create(messages=messages, **asked)
    assert last.content[0].text == "Sunny."
    assert upstream.requests[1]["messages"][1:] == [
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "content": "Error: no", "tool_call_id": "call_9"},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}}],
        },
    ]
    (node,) = await server.nodes(session)
    assert node["metadata"]["trainable"] is False


async def test_a_failing_upstream_is_left_for_the_next(rolltap_serve, upstream, kind):
    down = {**backend_table(kind, upstream), "api_base": "http://127.0.0.1:9/v1"}
    tables = [down, backend_table(kind, upstream)]
    server = await rolltap_serve(config={"models": [{"name": MODEL, "backends": tables}]})
    upstream.script = [completion({"content": "A"})] * 3
    for _ in range(3):
        status, _ = await server.post(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}
        )
        assert status == 200


async def test_a_reply_without_choices_is_an_empty_turn(server, upstream):
    upstream.script = [envelope("chat.completion", [], usage={**USAGE, "completion_tokens": 0})]
    status, body = await server.post(
        "/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    )
    assert (status, body["content"], body["stop_reason"]) == (200, [], "end_turn")
    assert body["usage"] == {"input_tokens": 12, "cache_read_input_tokens": 0, "output_tokens": 0}
