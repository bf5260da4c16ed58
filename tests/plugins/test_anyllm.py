"""The any-llm backend used directly, over a stand-in for any-llm; over the real one see test_chat_backends_served."""

import json
import subprocess
import sys
from types import SimpleNamespace as Obj

import pytest

import rolltap
from rolltap import BackendResponse, ChatBackend, ChatRequest, ConfigError, Message, Sampling, StreamEvent
from rolltap_plugins import anyllm

HI = {"role": "user", "content": "hi"}


class Client:
    """What any-llm's `create` gives: answers with `reply`, an exception is raised."""

    def __init__(self):
        self.calls = []
        self.reply = None

    async def acompletion(self, **arguments):
        self.calls.append(arguments)
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply


class Chunks:
    """An async iterator that is no generator, as SDKs' streams are."""

    def __init__(self, *chunks):
        self._chunks = iter(chunks)
        self.closed = False

    def __aiter__(self):
        return self

    async def __anext__(self):
        for chunk in self._chunks:
            return chunk
        raise StopAsyncIteration

    async def aclose(self):
        self.closed = True


@pytest.fixture
def client():
    return Client()


@pytest.fixture
def created(monkeypatch, client):
    """What `create` was called with."""
    calls = []

    class Factory:
        @staticmethod
        def create(provider, **settings):
            calls.append((provider, settings))
            return client

    monkeypatch.setattr(anyllm, "ANYLLM_AVAILABLE", True)
    monkeypatch.setattr(anyllm, "AnyLLM", Factory)
    return calls


@pytest.fixture
def backend(created):
    return anyllm.AnyLLMBackend(provider="Groq")


def reply(*choices, usage=None):
    return Obj(id="r", created=7, choices=list(choices), usage=usage)


def choice(content="done", finish="stop", calls=None):
    message = Obj(role="assistant", content=content, tool_calls=calls)
    return Obj(index=0, finish_reason=finish, message=message)


def made(call_id, name, arguments):
    return Obj(id=call_id, function=Obj(name=name, arguments=arguments))


def step(finish=None, **delta):
    return Obj(choices=[Obj(delta=Obj(**delta), finish_reason=finish)])


def piece(index, arguments=None, *, name=None, call_id=None):
    return Obj(index=index, id=call_id, function=Obj(name=name, arguments=arguments))


class TestMaking:
    def test_only_what_is_set_reaches_any_llm(self, created):
        both = anyllm.AnyLLMBackend(provider="openai", api_key="k", api_base="https://example.test/v1")
        neither = anyllm.AnyLLMBackend()
        blank = anyllm.AnyLLMBackend(provider="openai", api_key="", api_base="")
        assert created == [
            ("openai", {"api_key": "k", "api_base": "https://example.test/v1"}),
            ("openai", {}),
            ("openai", {}),
        ]
        assert (both.api_key, both.api_base) == ("k", "https://example.test/v1")
        assert (neither.api_key, blank.api_key, blank.api_base) == (None, None, None)

    def test_what_it_says_of_itself(self, backend, client):
        assert (backend.provider, backend.name) == ("groq", "anyllm-groq")
        assert backend.llm is client
        assert backend.map_model_id("some-model") == "some-model"
        assert backend.supports_model("any") is True
        assert isinstance(backend, ChatBackend)

    def test_without_any_llm(self, monkeypatch):
        monkeypatch.setattr(anyllm, "ANYLLM_AVAILABLE", False)
        with pytest.raises(ImportError, match="any-llm-sdk"):
            anyllm.AnyLLMBackend()

    def test_importing_it_does_not_import_any_llm(self):
        code = "import sys, rolltap_plugins.anyllm as a; print('any_llm' in sys.modules, a.ANYLLM_AVAILABLE)"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert run.stdout.split() == ["False", "True"]

    def test_the_real_one_is_found_when_first_asked(self):
        backend = anyllm.AnyLLMBackend("openai", api_key="k")
        assert type(backend.llm).__module__.startswith("any_llm.")

    async def test_closing(self, backend, client):
        assert await backend.close() is None

        class Closable:
            closed = False

            async def close(self):
                self.closed = True

        client.client = Closable()
        assert await backend.close() is None
        assert client.client.closed


class TestConfig:
    def test_a_server_s_backend_has_unified_errors_and_no_retries(self, created, monkeypatch):
        monkeypatch.setenv("SOME_KEY", "secret")
        table = {"provider": "openai", "model": "big", "api_base": "http://h:1/v1", "api_key_env": "SOME_KEY"}
        backend = anyllm.create_backend(kind="anyllm", options=table, model="served")
        assert created == [
            (
                "openai",
                {
                    "api_key": "secret",
                    "api_base": "http://h:1/v1",
                    "unified_exceptions": True,
                    "max_retries": 0,
                },
            )
        ]
        assert backend.map_model_id("served") == "big"
        plain = anyllm.create_backend(kind="anyllm", options={}, model="served")
        assert plain.map_model_id("other") == "served"
        assert anyllm.create_backend(kind="vllm", options={}, model="served") is None

    def test_a_provider_whose_sdk_has_no_such_setting(self, monkeypatch, client):
        asked = []

        class Factory:
            @staticmethod
            def create(provider, **settings):
                asked.append(settings)
                if "max_retries" in settings:
                    error = ValueError("not supported")
                    error.parameter_name = "max_retries"
                    raise error
                return client

        monkeypatch.setattr(anyllm, "AnyLLM", Factory)
        assert anyllm.create_backend(kind="anyllm", options={}, model="m").llm is client
        assert asked == [{"unified_exceptions": True, "max_retries": 0}, {"unified_exceptions": True}]

    @pytest.mark.parametrize(
        ("table", "said"),
        [
            ({"providr": "x"}, 'did you mean "provider"'),
            ({"provider": 3}, "option 'provider' is 3"),
            ({"api_base": "host:80"}, "'api_base' is 'host:80'"),
            ({"api_key_env": "NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE"),
            ({"provider": "no-such-one"}, "no-such-one"),
        ],
    )
    def test_mistakes_are_named(self, table, said):
        with pytest.raises(ConfigError, match=said) as caught:
            anyllm.create_backend(kind="anyllm", options=table, model="m")
        assert "model 'm', backend of kind 'anyllm'" in str(caught.value)


class TestMessages:
    async def test_a_plain_reply(self, backend, client):
        client.reply = reply(choice(), usage=Obj(prompt_tokens=4, completion_tokens=6))
        body = {
            "model": "claude-x",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
            "system": [{"text": "system rule"}, "extra"],
            "max_tokens": 200,
            "temperature": 0.3,
            "top_p": 0.8,
            "stop_sequences": ["END"],
            "tools": [{"name": "t"}],
            "tool_choice": {"type": "auto"},
        }
        answer = await backend.send_message(body, {"x-api-key": "the caller's"})
        assert isinstance(answer, BackendResponse)
        assert (answer.status_code, answer.headers, answer.error) == (
            200,
            {"content-type": "application/json"},
            None,
        )
        assert answer.body["content"] == [{"type": "text", "text": "done"}]
        assert (answer.body["type"], answer.body["role"], answer.body["model"]) == (
            "message",
            "assistant",
            "claude-x",
        )
        assert answer.body["usage"] == {"input_tokens": 4, "output_tokens": 6}
        (sent,) = client.calls
        assert sent["messages"] == [
            {"role": "system", "content": "system rule extra"},
            {"role": "user", "content": "hello"},
        ]
        assert {name: sent[name] for name in ("model", "max_tokens", "temperature", "top_p", "stop")} == {
            "model": "claude-x",
            "max_tokens": 200,
            "temperature": 0.3,
            "top_p": 0.8,
            "stop": ["END"],
        }
        assert "stream" not in sent

    @pytest.mark.parametrize(
        ("content", "sent"),
        [
            ("plain", "plain"),
            ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
            (
                [
                    {"type": "text", "text": "see"},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/jpeg", "data": "abc"},
                    },
                    {"type": "image", "source": {"type": "url", "url": "https://example.test/i.png"}},
                ],
                [
                    {"type": "text", "text": "see"},
                    {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,abc"}},
                    {"type": "image_url", "image_url": {"url": "https://example.test/i.png"}},
                ],
            ),
            ([{"type": "tool_use", "id": "left out"}], ""),
        ],
    )
    async def test_content(self, backend, client, content, sent):
        client.reply = reply(choice())
        messages = [{"role": "user", "content": 123}, {"role": "user", "content": content}, None]
        await backend.send_message({"messages": messages}, {})
        assert client.calls[0]["messages"] == [{"role": "user", "content": sent}]

    async def test_an_assistant_s_empty_turn_is_text(self, backend, client):
        client.reply = reply(choice())
        turn = {"role": "assistant", "content": [{"type": "tool_use", "id": "nameless"}]}
        await backend.send_message({"messages": [turn]}, {})
        assert client.calls[0]["messages"] == [{"role": "assistant", "content": ""}]

    @pytest.mark.parametrize("stream", [False, True])
    async def test_tools_and_choice_in_openai_s_shape(self, backend, client, stream):
        schema = {"type": "object", "properties": {"city": {"type": "string"}}}
        tools = [{"name": "weather", "description": "look up", "input_schema": schema}, {"name": "t"}]
        for choice_in, choice_out in [
            ({"type": "any"}, "required"),
            ({"type": "tool", "name": "t"}, {"type": "function", "function": {"name": "t"}}),
            ({"type": "none"}, "none"),
        ]:
            body = {"messages": [HI], "tools": tools, "tool_choice": choice_in}
            client.reply = Chunks() if stream else reply(choice())
            if stream:
                assert [event async for event in backend.stream_message(body, {})]
            else:
                await backend.send_message(body, {})
            sent = client.calls[-1]
            assert sent["tool_choice"] == choice_out
            assert sent["tools"] == [
                {
                    "type": "function",
                    "function": {"name": "weather", "description": "look up", "parameters": schema},
                },
                {"type": "function", "function": {"name": "t"}},
            ]
            assert sent.get("stream", False) is stream

    async def test_calls_and_arguments_that_are_parsed_already(self, backend, client):
        calls = [made("1", "save", '{"what": "x"}'), made("2", "find", {"query": "y"})]
        usage = Obj(prompt_tokens=12, completion_tokens=7)
        client.reply = reply(choice("hello", "tool_calls", calls), usage=usage)
        body = (await backend.send_message({"model": "m", "messages": [HI]}, {})).body
        assert body["stop_reason"] == "tool_use"
        assert body["content"] == [
            {"type": "text", "text": "hello"},
            {"type": "tool_use", "id": "1", "name": "save", "input": {"what": "x"}},
            {"type": "tool_use", "id": "2", "name": "find", "input": {"query": "y"}},
        ]
        assert body["usage"] == {"input_tokens": 12, "output_tokens": 7}

    async def test_no_choices_are_an_empty_turn(self, backend, client):
        client.reply = reply(usage=Obj(prompt_tokens=9, completion_tokens=0))
        body = (await backend.send_message({"model": "m", "messages": [HI]}, {})).body
        assert (body["content"], body["stop_reason"], body["role"]) == ([], "end_turn", "assistant")
        assert body["usage"] == {"input_tokens": 9, "output_tokens": 0}

    async def test_a_stream_of_text(self, backend, client):
        client.reply = chunks = Chunks(step(content="hel"), step(content="lo"), Obj(choices=[]))
        body = {"model": "m", "messages": [], "system": "sys"}
        events = [event async for event in backend.stream_message(body, {})]
        assert all(isinstance(event, StreamEvent) for event in events)
        assert [event.event_type for event in events] == [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
        assert all(event.data["type"] == event.event_type for event in events)
        assert events[0].data["message"]["model"] == "m"
        # Nothing was counted upstream: the pieces are.
        assert events[5].data["usage"] == {"output_tokens": 2}
        (sent,) = client.calls
        assert sent["stream"] is True
        assert sent["messages"] == [{"role": "system", "content": "sys"}]
        assert chunks.closed

    async def test_a_stream_with_a_call(self, backend, client):
        client.reply = Chunks(
            step(tool_calls=[piece(0, name="weather", call_id="call_a")]),
            step(tool_calls=[piece(0, '{"city":')]),
            step(tool_calls=[piece(0, '"paris"}')]),
            step("tool_calls"),
        )
        events = [event async for event in backend.stream_message({"messages": []}, {})]
        assert [event.event_type for event in events] == [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
        block = events[1].data["content_block"]
        assert (block["type"], block["id"], block["name"]) == ("tool_use", "call_a", "weather")
        assert events[2].data["delta"] == {"type": "input_json_delta", "partial_json": '{"city":"paris"}'}
        assert events[4].data["delta"]["stop_reason"] == "tool_use"

    async def test_interleaved_calls_are_whole_blocks(self, backend, client):
        client.reply = Chunks(
            step(
                tool_calls=[
                    piece(0, '{"a":', name="one", call_id="c0"),
                    piece(1, '{"b":', name="two", call_id="c1"),
                ]
            ),
            step(tool_calls=[piece(0, "1}")]),
            step(tool_calls=[piece(1, "2}")]),
            step("tool_calls"),
        )
        blocks, open_block = [], None
        async for event in backend.stream_message({"messages": []}, {}):
            match event.data:
                case {"type": "content_block_start", "index": index, "content_block": block}:
                    assert open_block is None
                    open_block = index
                    blocks.append([index, block["id"], block["name"], ""])
                case {"type": "content_block_delta", "index": index, "delta": delta}:
                    assert open_block == index
                    blocks[-1][3] += delta["partial_json"]
                case {"type": "content_block_stop", "index": index}:
                    assert open_block == index
                    open_block = None
        assert blocks == [[0, "c0", "one", '{"a":1}'], [1, "c1", "two", '{"b":2}']]

    @pytest.mark.parametrize(
        ("finish", "stop_reason"),
        [("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "refusal")],
    )
    async def test_why_a_stream_ended(self, backend, client, finish, stop_reason):
        client.reply = Chunks(step(content="hi"), step(finish))
        events = [event async for event in backend.stream_message({"messages": []}, {})]
        assert events[-2].data["delta"]["stop_reason"] == stop_reason

    async def test_a_refused_stream_is_an_error_alone(self, backend, client):
        client.reply = RuntimeError("stream broke")
        (event,) = [event async for event in backend.stream_message({"messages": []}, {})]
        assert event.event_type == "error"
        assert event.data["error"] == {"type": "api_error", "message": "stream broke"}

    async def test_a_stream_that_fails_ends_with_the_error(self, backend, client):
        class Failing(Chunks):
            async def __anext__(self):
                for chunk in self._chunks:
                    return chunk
                raise RuntimeError("rate limit reached")

        client.reply = failing = Failing(step(content="hel"))
        events = [event async for event in backend.stream_message({"messages": []}, {})]
        assert [event.event_type for event in events][-2:] == ["content_block_delta", "error"]
        assert events[-1].data["error"]["type"] == "rate_limit_error"
        assert failing.closed

    async def test_a_caller_that_leaves_closes_the_stream(self, backend, client):
        client.reply = chunks = Chunks(*(step(content="x") for _ in range(9)))
        events = backend.stream_message({"messages": []}, {})
        assert (await anext(events)).event_type == "message_start"
        await events.aclose()
        assert chunks.closed


class TestOpenAI:
    async def test_a_plain_reply(self, backend, client):
        calls = [made("1", "find", '{"query":"x"}'), Obj(id="2", function=None)]
        usage = Obj(prompt_tokens=2, completion_tokens=3, total_tokens=5)
        client.reply = reply(choice("answer", "stop", calls), usage=usage)
        body = {
            "model": "m",
            "messages": [HI],
            "max_tokens": 50,
            "temperature": 0.2,
            "top_p": 0.9,
            "stop": ["END"],
            "tools": [{"name": "memory"}],
            "tool_choice": "auto",
            "response_format": {"type": "json_object"},
            "seed": 1,
            "n": 2,
        }
        answer = await backend.send_openai_message(body, {})
        assert (answer.status_code, answer.error) == (200, None)
        assert answer.body["object"] == "chat.completion"
        message = answer.body["choices"][0]["message"]
        assert message["tool_calls"][0]["function"] == {"name": "find", "arguments": '{"query":"x"}'}
        assert message["tool_calls"][1] == {"id": "2", "type": "function"}
        assert answer.body["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
        (sent,) = client.calls
        assert {name: sent[name] for name in ("max_tokens", "seed", "n", "stop", "response_format")} == {
            "max_tokens": 50,
            "seed": 1,
            "n": 2,
            "stop": ["END"],
            "response_format": {"type": "json_object"},
        }
        assert sent["tools"] == [{"type": "function", "function": {"name": "memory"}}]

    async def test_a_stream(self, backend, client):
        def dumped(text):
            return Obj(model_dump=lambda **options: {"id": "c", "choices": [{"delta": {"content": text}}]})

        client.reply = Chunks(dumped("a"), dumped("b"))
        body = {"messages": [HI], "stream_options": {"include_usage": True}}
        frames = [frame async for frame in backend.stream_openai_message(body, {})]
        assert frames.pop() == "data: [DONE]\n\n"
        assert all(frame.startswith("data: {") and frame.endswith("}\n\n") for frame in frames)
        chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames]
        texts = [each["choices"][0]["delta"].get("content", "") for each in chunks if each["choices"]]
        assert "".join(texts) == "ab"
        assert chunks[-1]["usage"]["completion_tokens"] == 2
        (sent,) = client.calls
        assert (sent["stream"], sent["stream_options"]) == (True, {"include_usage": True})

    async def test_a_refused_stream(self, backend, client):
        client.reply = RuntimeError("rate limit hit")
        error, done = [frame async for frame in backend.stream_openai_message({"messages": []}, {})]
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "backend_error"
        assert done == "data: [DONE]\n\n"

    async def test_parameters_that_any_llm_has_no_name_for(self, backend, client):
        client.reply = reply(choice())
        await backend.send_openai_message({"messages": [HI], "top_k": 3, "strange": True}, {})
        assert client.calls[0]["extra_body"] == {"top_k": 3, "strange": True}

    async def test_any_llm_s_own_arguments_are_no_client_s(self, backend, client):
        client.reply = reply(choice())
        theirs = {"extra_headers": {"Authorization": "Bearer other"}, "extra_body": 3}
        await backend.send_openai_message({"messages": [HI], **theirs}, {})
        assert client.calls[0]["extra_body"] == theirs
        assert "extra_headers" not in client.calls[0]


@pytest.mark.parametrize(
    ("text", "status", "to_anthropic", "to_openai"),
    [
        ("authentication api_key missing", 401, "authentication_error", "authentication_error"),
        ("rate limit exceeded", 429, "rate_limit_error", "rate_limit_exceeded"),
        ("model not found", 404, "not_found_error", "model_not_found"),
        ("other error", 500, "api_error", "server_error"),
    ],
)
async def test_failures_by_their_words(backend, client, text, status, to_anthropic, to_openai):
    client.reply = RuntimeError(text)
    for send, kind in (
        (backend.send_message, to_anthropic),
        (backend.send_openai_message, to_openai),
    ):
        answer = await send({"messages": []}, {})
        assert (answer.status_code, answer.error) == (status, text)
        assert (answer.body["error"]["type"], answer.body["error"]["message"]) == (kind, text)


async def test_a_body_that_can_t_be_read_is_a_400(backend, client):
    for send in (backend.send_message, backend.send_openai_message):
        answer = await send({"messages": [HI], "temperature": "hot"}, {})
        assert answer.status_code == 400
        assert "temperature" in answer.error
    frames = [frame async for frame in backend.stream_openai_message({"temperature": "hot"}, {})]
    assert "temperature" in frames[0]
    assert client.calls == []


async def test_template_variables_go_where_a_template_is(created, client):
    client.reply = reply(choice())
    request = ChatRequest(
        model="m",
        messages=[Message(role="user", content="hi")],
        template_kwargs={"enable_thinking": False, "reasoning_effort": "low"},
        sampling=Sampling(top_logprobs=0),
    )
    for options in (
        {"provider": "groq"},
        {"provider": "vllm"},
        {"provider": "openai", "api_base": "http://h"},
    ):
        async for _ in anyllm.AnyLLMBackend(**options).chat(request):
            pass
    assert [call.get("extra_body") for call in client.calls] == [
        None,
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ]
    assert all(call["reasoning_effort"] == "low" and call["logprobs"] is True for call in client.calls)


async def test_every_chat_backend_can_be_used_directly():
    class Echo(rolltap.ChatBackend):
        async def chat(self, request):
            yield rolltap.ChatDelta(text=request.messages[-1].text.upper())
            yield rolltap.ChatDelta(finish_reason="stop")

    answer = await Echo().send_openai_message({"messages": [HI]})
    assert answer.body["choices"][0]["message"]["content"] == "HI"
    answer = await Echo().send_message({"messages": [HI]})
    assert answer.body["content"] == [{"type": "text", "text": "HI"}]
