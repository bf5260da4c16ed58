"""The openai backend: its options, what it sends, and the replies of servers that are like OpenAI's in their own ways."""

import asyncio
import json
from typing import get_type_hints

import aiohttp
import msgspec
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolltap import (
    ChatDelta,
    ChatRequest,
    ConfigError,
    ImagePart,
    Message,
    Sampling,
    TextPart,
    ToolCall,
    ToolChoice,
    UpstreamError,
    Usage,
)
from rolltap.turns.fragments import CallFragments
from rolltap_plugins.openai_backend import OpenAIBackend, Options, create_backend
from rolltap_plugins.upstream.errors import http_error, told_error
from rolltap_plugins.upstream.replies import ReplyReader
from rolltap_plugins.upstream.requests import Style, chat_body
from rolltap_plugins.upstream.sse import EventReader
from scripted_openai import (
    DONE,
    HANG,
    USAGE,
    Refusal,
    chunk,
    completion,
    envelope,
    in_chunks,
    scripted_upstream,
)

HI = [Message(role="user", content="hi")]
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def upstream():
    async with scripted_upstream() as running:
        yield running


@pytest.fixture
async def backend(upstream):
    made = OpenAIBackend(Options(api_base=upstream.url, model="big", headers={"x-team": "red"}), "served")
    await made.start()
    yield made
    await made.close()


async def said(backend, *, stream=True, **request):
    """A reply's deltas that say something."""
    deltas = backend.chat(ChatRequest(messages=HI, stream=stream, **request))
    return [delta async for delta in deltas if delta != ChatDelta()]


class TestOptions:
    def test_where_requests_go(self):
        for options, endpoint in [
            (Options(url="http://h:8000"), "http://h:8000/v1"),
            (Options(url="http://h:8000/v1/"), "http://h:8000/v1"),
            (Options(url="http://h/some/path"), "http://h/some/path/v1"),
            (Options(api_base="https://h/openai/v1"), "https://h/openai/v1"),
            (Options(api_base="http://h/api/"), "http://h/api"),
        ]:
            assert options.base == endpoint

    def test_openai_itself_gets_nothing_that_it_refuses(self):
        style = Options(api_base="https://api.openai.com/v1").style
        assert style == Style(
            max_tokens="max_completion_tokens",
            reasoning="",
            template_kwargs=False,
            openai=True,
            developer=True,
            systems="anywhere",
        )
        assert Options(url="http://h").style == Style(reasoning="reasoning_content")
        own = Options(url="http://h", systems="anywhere", developer_role=True).style
        assert (own.systems, own.developer) == ("anywhere", True)
        own = Options(url="http://h", max_tokens_field="max_completion_tokens", reasoning_field="")
        assert own.style == Style(max_tokens="max_completion_tokens")

    @pytest.mark.parametrize(
        ("table", "words"),
        [
            ({"urll": "http://h"}, 'did you mean "url"'),
            ({"xyzzy": 1}, "known are: url, api_base"),
            ({}, "give either 'url'"),
            ({"url": "http://h", "api_base": "http://h"}, "give either 'url'"),
            ({"url": "h:80"}, "'url' is 'h:80'"),
            ({"url": "http://h", "timeout_s": -1}, "option 'timeout_s' is -1"),
            ({"url": "http://h", "headers": {"a": 1}}, "option 'headers'"),
            ({"url": "http://h", "api_key_env": "NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE"),
        ],
    )
    def test_mistakes_are_named(self, table, words):
        with pytest.raises(ConfigError, match="model 'm', backend of kind 'openai'") as caught:
            create_backend(kind="openai", options=table, model="m")
        assert words in str(caught.value)

    def test_other_kinds_are_others_business(self):
        assert create_backend(kind="anyllm", options={}, model="m") is None

    async def test_key_headers_and_name(self, upstream, monkeypatch):
        monkeypatch.setenv("SOME_KEY", "secret")
        table = {"url": upstream.url, "api_key_env": "SOME_KEY", "headers": {"x-team": "red"}}
        backend = create_backend(kind="openai", options=table, model="served")
        await backend.start()
        upstream.script = [completion({"content": "A"})]
        await said(backend, stream=False)
        await backend.close()
        assert upstream.requests[0]["model"] == "served"
        assert upstream.headers[0]["authorization"] == "Bearer secret"
        assert upstream.headers[0]["x-team"] == "red"


class TestRequests:
    def test_messages(self):
        request = ChatRequest(
            messages=[
                Message(role="developer", content="be brief"),
                Message(role="user", content=[TextPart("see"), ImagePart("data:x")], name="ann"),
                Message(role="assistant", reasoning="hm", tool_calls=[ToolCall("f", "{}", "1")]),
                Message(role="tool", content="r", tool_call_id="1"),
                Message(role="assistant", reasoning="hm", content="done"),
            ]
        )
        called = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        body = chat_body(request, "big", Style(reasoning="reasoning_content"))
        assert body == {
            "model": "big",
            "messages": [
                {"role": "system", "content": "be brief"},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "see"},
                        {"type": "image_url", "image_url": {"url": "data:x"}},
                    ],
                    "name": "ann",
                },
                {"role": "assistant", "content": None, "tool_calls": [called], "reasoning_content": "hm"},
                {"role": "tool", "content": "r", "tool_call_id": "1"},
                {"role": "assistant", "content": "done", "reasoning_content": "hm"},
            ],
        }
        without = chat_body(request, "big", Style())
        assert "hm" not in json.dumps(without)

    def test_parameters(self):
        tool = {"type": "function", "function": {"name": "f"}}
        request = ChatRequest(
            messages=HI,
            tools=[tool],
            tool_choice=ToolChoice(mode="named", name="f"),
            parallel_tool_calls=False,
            sampling=Sampling(
                n=2,
                max_tokens=5,
                top_p=0.5,
                top_k=3,
                stop=["x"],
                logit_bias={7: 1.5},
                top_logprobs=2,
                extra={"strange": [1]},
            ),
            template_kwargs={"enable_thinking": True, "reasoning_effort": "low"},
            stream=True,
            client_fields={"user": "u", "store": False, "metadata": {"user_id": "x" * 200}},
        )
        body = chat_body(request, "big", Style())
        del body["messages"], body["model"]
        assert body == {
            "stream": True,
            "stream_options": {"include_usage": True},
            "tools": (tool,),
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "parallel_tool_calls": False,
            "n": 2,
            "max_tokens": 5,
            "top_p": 0.5,
            "top_k": 3,
            "stop": ("x",),
            "logit_bias": {"7": 1.5},
            "logprobs": True,
            "top_logprobs": 2,
            "chat_template_kwargs": {"enable_thinking": True},
            "reasoning_effort": "low",
            "user": "u",
            "strange": [1],
        }
        hosted = chat_body(request, "big", Options(api_base="https://api.openai.com/v1").style)
        assert (hosted["store"], hosted["max_completion_tokens"]) == (False, 5)
        assert hosted.keys().isdisjoint({"chat_template_kwargs", "max_tokens"})
        assert "stream_options" not in chat_body(request, "big", Style(stream_usage=False))


class TestReplies:
    """On a socket: how an answer may come, whatever was asked for."""

    async def test_json_though_a_stream_was_asked_for(self, backend, upstream):
        upstream.script = [completion({"content": "A", "tool_calls": None}, usage=USAGE)]
        assert await said(backend) == [
            ChatDelta(text="A", finish_reason="stop"),
            ChatDelta(usage=Usage(prompt_tokens=12, completion_tokens=5)),
        ]
        assert upstream.requests[0]["stream"] is True

    @pytest.mark.parametrize("finish", [{}, {"finish_reason": None}])
    async def test_a_whole_reply_that_does_not_say_why_it_ended(self, backend, upstream, finish):
        calls = [{"id": "1", "type": "function", "function": {"name": "a", "arguments": "{}"}}]
        said_so = [
            {"index": 0, "message": {"role": "assistant", "content": "A"}, **finish},
            {"index": 1, "message": {"role": "assistant", "content": "", "tool_calls": calls}, **finish},
        ]
        upstream.script = [envelope("chat.completion", said_so)]
        deltas = await said(backend, stream=False)
        assert [(delta.index, delta.finish_reason) for delta in deltas if delta.finish_reason] == [
            (0, "stop"),
            (1, "tool_calls"),
        ]

    async def test_a_stream_though_none_was_asked_for(self, backend, upstream):
        upstream.script = [in_chunks("A")]
        assert [delta.text for delta in await said(backend, stream=False)] == ["A", "", ""]
        assert "stream" not in upstream.requests[0]

    async def test_comments_and_fields_that_mean_nothing_here(self, backend, upstream):
        body = b"".join(
            [
                b": keep-alive\r\n\r\n",
                b"event: message\nid: 4\ndata:" + orjson.dumps(chunk({"content": "A"})) + b"\n\n",
                b"data: " + orjson.dumps(chunk(finish="stop")) + b"\r\n\r\n",
                b"data: [DONE]",
            ]
        )
        upstream.script = [[body]]
        assert [(delta.text, delta.finish_reason) for delta in await said(backend)] == [
            ("A", None),
            ("", "stop"),
        ]

    @pytest.mark.parametrize(
        ("entry", "words"),
        [
            (Refusal(200, "oops"), "not JSON"),
            (Refusal(200, "[]"), "Expected `object`, got `array`"),
            (Refusal(200, {"choices": 5}), "can't be read"),
            (Refusal(302, "", {"location": "http://127.0.0.1:9/"}), "a redirect, which is not followed"),
            ([b'data: [{"choices": []}]\n\n'], "can't be read"),
            ([b'data: {"choices": [{"index": "0", "delta": {"content": "A"}}]}\n\n'], "a count was expected"),
            (Refusal(200, {"message": "welcome"}), "no choices"),
            (Refusal(200, {"choices": None}), "no choices"),
            (Refusal(200, {"error": {"message": "no room", "code": 503}}), "no room"),
            ([b"data: {oops\n\n"], "not JSON"),
            ([b'data: {"choices": [3]}\n\n'], "can't be read"),
            ([b'error: {"code": 500, "message": "slot lost"}\n\n'], "slot lost"),
        ],
    )
    async def test_what_can_t_be_used(self, backend, upstream, entry, words):
        upstream.script = [entry]
        with pytest.raises(UpstreamError, match=words):
            await said(backend)

    async def test_nothing_after_the_end_is_read(self, backend, upstream):
        late = b"data: " + orjson.dumps(chunk({"content": "late"})) + b"\n\n"
        whole = b"".join(
            each if isinstance(each, bytes) else b"data: " + orjson.dumps(each) + b"\n\n"
            for each in in_chunks("A")
        )
        upstream.script = [[whole + late + b"data: {oops\n\n"], [whole, late]]
        for _ in range(2):
            assert "".join(delta.text for delta in await said(backend)) == "A"

    async def test_a_key_that_the_upstream_repeats_is_not_shown(self, upstream, monkeypatch):
        monkeypatch.setenv("SOME_KEY", "sk-very-secret")
        options = Options(url=upstream.url, api_key_env="SOME_KEY", headers={"x-api-key": "another-secret"})
        backend = OpenAIBackend(options, "m")
        await backend.start()
        words = "neither sk-very-secret nor another-secret"
        upstream.script = [
            Refusal(401, {"error": {"message": words}}),
            [b"data: " + orjson.dumps({"error": {"message": words}}) + b"\n\n"],
        ]
        for _ in range(2):
            with pytest.raises(UpstreamError, match=r"neither \*\*\* nor \*\*\*"):
                await said(backend)
        await backend.close()

    async def test_connections_are_used_again(self, backend, upstream):
        upstream.script = [in_chunks("A"), completion({"content": "A"}), in_chunks("A")]
        for _ in range(3):
            assert await said(backend)
        assert len(backend._upstream._opened.connector._conns) == 1

    async def test_a_stream_that_stays_open_after_its_end(self, backend, upstream, monkeypatch):
        monkeypatch.setattr("rolltap_plugins.upstream.sse.CLOSES_WITHIN_S", 0.05)
        upstream.script = [[*in_chunks("A"), HANG]]
        assert len(await said(backend)) == 3
        await asyncio.wait_for(upstream.left.wait(), 5)

    async def test_silence_is_a_timeout(self, upstream):
        backend = OpenAIBackend(Options(url=upstream.url, timeout_s=0.1), "m")
        await backend.start()
        upstream.script = [[chunk({"content": "A"}), HANG]]
        with pytest.raises(TimeoutError):
            await said(backend)
        await backend.close()

    async def test_check(self, backend, upstream):
        assert await backend.check() == {"model": "big", "listed": True}
        nobody = OpenAIBackend(Options(url="http://127.0.0.1:9"), "m")
        await nobody.start()
        with pytest.raises(aiohttp.ClientError):
            await nobody.check()
        await nobody.close()

    async def test_not_started(self):
        backend = OpenAIBackend(Options(url="http://127.0.0.1:9"), "m")
        with pytest.raises(RuntimeError, match="start"):
            await said(backend)

    async def test_used_directly(self, backend, upstream):
        upstream.script = [completion({"content": "A"}, usage=USAGE), in_chunks("A", "B")]
        answer = await backend.send_message({**BODY, "max_tokens": 5}, {})
        assert answer.body["content"] == [{"type": "text", "text": "A"}]
        frames = [frame async for frame in backend.stream_openai_message(BODY, {})]
        assert frames[-1] == "data: [DONE]\n\n"
        assert '"content":"B"' in "".join(frames)

    async def test_a_refusal_used_directly(self, backend, upstream):
        upstream.script = [Refusal(429, {"error": {"message": "slow"}}, {"retry-after": "3"})]
        answer = await backend.send_openai_message(BODY)
        assert (answer.status_code, answer.error, answer.headers["retry-after"]) == (429, "slow", "3")


def read(*chunks, **sampling):
    """What the reader makes of these chunks."""
    reader = ReplyReader(ChatRequest(messages=HI, sampling=Sampling(**sampling)))
    return [delta for each in chunks for delta in reader.chunk(each)]


def calls_in(deltas):
    """The calls that these deltas are, put in order by the core."""
    order = CallFragments()
    pieces = [piece for delta in deltas for call in delta.tool_calls for piece in order.take(call)]
    found = {}
    for piece in [*pieces, *order.finish()]:
        name, arguments = found.get(piece.index, ("", ""))
        found[piece.index] = (name + (piece.name or ""), arguments + piece.arguments)
    return list(found.values())


class TestReader:
    def test_calls_without_index(self):
        def fragment(**fields):
            return chunk({"tool_calls": [fields]})

        deltas = read(
            fragment(id="1", function={"name": "a", "arguments": '{"k"'}),
            fragment(function={"arguments": ": 1}"}),
            fragment(id="2", function={"name": "b", "arguments": "{}"}),
            fragment(id="2", function={"arguments": ""}),
            fragment(function={"name": "c", "arguments": {"parsed": True}}),
        )
        assert calls_in(deltas) == [("a", '{"k": 1}'), ("b", "{}"), ("c", '{"parsed":true}')]

    def test_a_deprecated_function_call(self):
        deltas = read(
            chunk({"function_call": {"name": "a", "arguments": '{"k"'}}),
            chunk({"function_call": {"arguments": ": 1}"}}),
            chunk(finish="function_call"),
        )
        assert calls_in(deltas) == [("a", '{"k": 1}')]
        assert deltas[-1].finish_reason == "tool_calls"
        (whole,) = read(completion({"function_call": {"name": "a", "arguments": "{}"}}, "function_call"))
        assert whole.tool_calls == [ToolCall("a", "{}")]

    def test_content_in_parts(self):
        thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
        (delta,) = read(chunk({"content": [thinking, {"type": "text", "text": "A"}]}))
        assert (delta.reasoning, delta.text) == ("hm", "A")

    def test_usage_with_its_details(self):
        details = {
            "prompt_tokens_details": {"cached_tokens": 8},
            "completion_tokens_details": {"reasoning_tokens": 3},
        }
        assert read({"choices": [], "usage": {**USAGE, **details}}) == [
            ChatDelta(usage=Usage(prompt_tokens=12, completion_tokens=5, cached_tokens=8, reasoning_tokens=3))
        ]
        (delta,) = read({"choices": [], "usage": {**USAGE, "prompt_cache_hit_tokens": 0}})
        assert delta.usage.cached_tokens == 0

    def test_logprobs_only_where_they_were_asked_for(self):
        content = [{"token": "A", "logprob": -0.5, "bytes": [65], "top_logprobs": []}]
        came = chunk({"content": "A"}, logprobs={"content": content})
        assert read(came)[0].logprobs is None
        assert read(came, top_logprobs=0)[0].logprobs[0].bytes == [65]

    @pytest.mark.parametrize(
        ("word", "reason"),
        [("eos", "stop"), ("max_tokens", "length"), ("tool_use", "tool_calls"), ("never heard of", "stop")],
    )
    def test_other_servers_words(self, word, reason):
        assert read(chunk({"content": "A"}, word))[0].finish_reason == reason

    def test_a_choice_that_ended_with_an_error(self):
        with pytest.raises(UpstreamError, match="error"):
            read(chunk(finish="error"))

    def test_fields_that_nobody_here_reads_go_on(self):
        reader = ReplyReader(ChatRequest())
        head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "usage": None}
        step = {"index": 0, "delta": {"role": "assistant", "content": "a", "annotations": [1], "audio": None}}
        (first,) = reader.chunk({**head, "system_fingerprint": "fp", "obfuscation": "zz", "choices": [step]})
        assert (first.text, first.extra, first.reply_extra) == (
            "a",
            {"annotations": [1]},
            {"system_fingerprint": "fp"},
        )
        again = {"index": 0, "delta": {"content": "b"}}
        (second,) = reader.chunk({**head, "system_fingerprint": "fp", "choices": [again]})
        assert (second.text, second.extra, second.reply_extra) == ("b", None, None)
        ended = {"index": 0, "delta": {}, "finish_reason": "stop"}
        (third,) = reader.chunk({**head, "citations": ["u"], "choices": [ended]})
        assert (third.finish_reason, third.reply_extra) == ("stop", {"citations": ["u"]})

    def test_an_empty_first_chunk_says_that_the_request_is_accepted(self):
        empty = chunk({"role": "assistant", "content": ""})
        assert read(empty, empty) == [ChatDelta()]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "content", "reasoning", "reasoning_content", "refusal", "tool_calls", "function_call", "index", "id", "function",
    "name", "arguments", "delta", "message", "finish_reason", "logprobs", "token", "logprob", "bytes", "top_logprobs",
    "usage", "prompt_tokens", "completion_tokens", "prompt_tokens_details", "cached_tokens", "stop_reason", "choices",
]  # fmt: skip
LIKELY = st.recursive(
    JSON,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6),
)


@given(choice=st.dictionaries(st.sampled_from(FIELDS), LIKELY), usage=LIKELY, whole=st.booleans())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_json_of_any_shape_is_read_or_the_upstreams_fault(choice, usage, whole):
    reader = ReplyReader(ChatRequest(messages=HI, sampling=Sampling(top_logprobs=1)))
    try:
        reply = {"choices": [choice], "usage": usage}
        deltas = reader.whole(reply) if whole else reader.chunk(reply)
    except UpstreamError:
        return
    for delta in deltas:
        types = get_type_hints(ChatDelta)
        for name, value in msgspec.structs.asdict(delta).items():
            if name == "tool_calls":
                for call in value:
                    msgspec.convert(msgspec.to_builtins(call), type(call))
            else:
                msgspec.convert(msgspec.to_builtins(value), types[name])


@pytest.mark.parametrize(
    ("status", "data", "message", "code"),
    [
        (400, b'{"error": {"message": "no", "code": "bad_thing"}}', "no", "bad_thing"),
        (400, b'{"error": "flat"}', "flat", None),
        (400, b'{"object": "error", "message": "old vLLM", "code": 400}', "old vLLM", None),
        (422, b'{"detail": [{"loc": ["n"]}]}', '[{"loc":["n"]}]', None),
        (429, b'[{"error": {"message": "Gemini", "status": "RESOURCE_EXHAUSTED"}}]', "Gemini", None),
        (500, b"plain words", "plain words", None),
        (502, b"<html>a page</html>", "the upstream answered 502", None),
        (503, b"", "the upstream answered 503", None),
    ],
)
def test_refusals_of_every_shape(status, data, message, code):
    error = http_error(status, data, {"retry-after": "1"})
    assert (error.status, error.message, error.code, error.headers) == (
        status,
        message,
        code,
        {"retry-after": "1"},
    )


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({"message": "m", "code": 429}, 429),
        ({"message": "m", "type": "overloaded_error"}, 503),
        ({"message": "m", "code": "rate_limit_exceeded"}, 429),
        ({"message": "m"}, 500),
        ("m", 500),
    ],
)
def test_errors_told_inside_a_reply(told, status):
    error = told_error(told)
    assert (error.status, error.message) == (status, "m")


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1)), st.randoms())
def test_events_are_the_same_however_they_are_cut(texts, rng):
    data = [text.encode() for text in texts]
    stream = b"".join(b"data: " + each + rng.choice([b"\n\n", b"\r\n\r\n", b"\n: x\n\n"]) for each in data)
    cuts = sorted(rng.randint(0, len(stream)) for _ in range(5))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    reader = EventReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    assert events == [each.strip(b" ") for each in data if each.strip(b" ")]
    assert reader.finish() == []


def test_done_ends_the_events():
    reader = EventReader()
    assert reader.feed(DONE) == []
    assert reader.done
