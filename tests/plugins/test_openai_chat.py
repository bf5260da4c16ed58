"""The dialect "openai.chat", read and written as the openai package does it."""

import json
import warnings
from typing import Any

import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from rolltap import (
    BadRequest,
    ChatDelta,
    ChatRequest,
    Choice,
    ErrorInfo,
    FilePart,
    ImagePart,
    Message,
    Sampling,
    TextPart,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    ToolChoice,
    Usage,
)
from rolltap_plugins.openai_dialects import chat
from wire_clients import blank, collected, frames, http_client, replies, streamed, valid

CONVERTER = chat.ChatConverter()
HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
OTHER = {"type": "function", "function": {"name": "fetch"}}


def decode(**fields):
    return CONVERTER.decode({"messages": HI, **fields})


def decode_messages(*messages):
    return list(CONVERTER.decode({"messages": list(messages)}).messages)


def refusal(body):
    with pytest.raises(BadRequest) as caught:
        CONVERTER.decode(body)
    assert caught.value.info.status == 400
    info = caught.value.info
    assert info.param is not None
    assert info.param in info.message
    return info


def client(reply) -> Any:
    http = http_client(openai, reply)
    return openai.OpenAI(base_url="http://rolltap.test/v1", api_key="x", http_client=http, max_retries=0)


def test_hook_answers_its_own_dialect_only():
    assert isinstance(chat.message_converter("openai.chat"), chat.ChatConverter)
    assert chat.message_converter("openai.completions") is None


# Decoding: the request as a whole


def test_least_request():
    request = CONVERTER.decode({"messages": HI})
    assert msgspec.structs.replace(request, state=None) == ChatRequest(
        messages=[Message(role="user", content="hi")]
    )


@pytest.mark.parametrize("body", [{}, {"messages": []}, {"messages": None}, {"messages": "hi"}])
def test_missing_or_empty_messages_are_named(body):
    assert refusal(body).param == "messages"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [*HI, {"role": "robot", "content": "x"}]}, "messages[1].role"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "hologram"}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].image_url.url",
        ),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]}]},
            "messages[0].tool_calls[0].custom.name",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"type": "custom"}]}]},
            "messages[0].tool_calls[0].custom",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"type": "mcp"}]}]},
            "messages[0].tool_calls[0].type",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function"}]}]},
            "messages[0].tool_calls[0].function",
        ),
        ({"messages": HI, "temperature": "hot"}, "temperature"),
        ({"messages": HI, "temperature": -1}, "temperature"),
        ({"messages": HI, "top_p": 1.5}, "top_p"),
        ({"messages": HI, "n": 0}, "n"),
        ({"messages": HI, "n": True}, "n"),
        ({"messages": HI, "n": 10**9}, "n"),
        ({"messages": HI, "seed": 2**70}, "seed"),
        ({"messages": HI, "max_tokens": 0}, "max_tokens"),
        ({"messages": HI, "max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"messages": HI, "stop": ["a", ""]}, "stop"),
        ({"messages": HI, "stop": [1]}, "stop[0]"),
        ({"messages": HI, "logit_bias": {"cat": 1}}, "logit_bias"),
        ({"messages": HI, "logit_bias": [1]}, "logit_bias"),
        ({"messages": HI, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": HI, "response_format": {}}, "response_format.type"),
        ({"messages": HI, "response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"messages": HI, "modalities": ["text", "audio"]}, "modalities"),
        ({"messages": HI, "stream": "yes"}, "stream"),
        ({"messages": HI, "model": 4}, "model"),
        ({"messages": HI, "tools": {}}, "tools"),
        ({"messages": HI, "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"messages": HI, "tools": [TOOL, {"type": "function"}]}, "tools[1].function"),
        ({"messages": HI, "tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"messages": HI, "tools": [TOOL], "functions": [{"name": "f"}]}, "functions"),
        ({"messages": HI, "tool_choice": "required"}, "tool_choice"),
        ({"messages": HI, "tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        (
            {
                "messages": HI,
                "tools": [TOOL],
                "tool_choice": {"type": "function", "function": {"name": "no"}},
            },
            "tool_choice",
        ),
        ({"messages": HI, "tools": [TOOL], "tool_choice": {"type": "custom"}}, "tool_choice"),
        (
            {"messages": HI, "tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
            "tool_choice.allowed_tools.tools",
        ),
    ],
)
def test_wrong_field_is_named(body, param):
    assert refusal(body).param == param


def test_every_sampling_parameter_arrives():
    request = decode(
        n=2,
        max_completion_tokens=7,
        min_tokens=1,
        temperature=1,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        seed=3,
        stop="END",
        stop_token_ids=[5],
        ignore_eos=True,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.1,
        logit_bias={"17": -100},
        logprobs=True,
        top_logprobs=3,
        response_format={"type": "json_object"},
    )
    assert request.sampling == Sampling(
        n=2,
        max_tokens=7,
        min_tokens=1,
        temperature=1.0,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        seed=3,
        stop=["END"],
        stop_token_ids=[5],
        ignore_eos=True,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.1,
        logit_bias={17: -100.0},
        top_logprobs=3,
        response_format={"type": "json_object"},
    )


def test_parameters_that_ask_for_nothing_are_not_set():
    request = decode(
        stop=[], logit_bias={}, logprobs=False, response_format={"type": "text"}, n=None, novelty=None
    )
    assert request.sampling.names() == set()


def test_unknown_parameter_goes_to_the_backend_and_harmless_ones_stay_with_the_request():
    request = decode(
        guided_regex="a+",
        user="u" * 300,
        store=False,
        metadata={"k": "v"},
        prompt_cache_key="p",
        service_tier="auto",
    )
    assert request.sampling.extra == {"guided_regex": "a+"}
    assert request.client_fields == {"user": "u" * 300, "store": False, "metadata": {"k": "v"}}
    assert request.upstream == {"prompt_cache_key": "p", "service_tier": "auto"}


def test_template_variables():
    request = decode(chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low")
    assert request.template_kwargs == {"enable_thinking": False, "reasoning_effort": "low"}


def test_stream_options():
    request = decode(stream=True, stream_options={"include_usage": True, "include_obfuscation": False})
    assert (request.stream, request.include_usage) == (True, True)
    assert decode(stream_options=None).include_usage is False


# Decoding: messages


def test_content_of_every_shape():
    text = {"type": "text", "text": "a"}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}}
    contents = ["", [], [text, image], [{"type": "image_url", "image_url": "http://x/y.png"}]]
    assert [m.content for m in decode_messages(*({"role": "user", "content": c} for c in contents))] == [
        "",
        (),
        (TextPart("a"), ImagePart("data:image/png;base64,AA==", extra={"detail": "low"})),
        (ImagePart("http://x/y.png"),),
    ]


def test_roles_are_kept_and_the_deprecated_function_role_is_a_tool():
    roles = ["system", "developer", "user", "assistant", "tool", "function"]
    read = decode_messages(*({"role": role, "content": "x", "name": "n"} for role in roles))
    assert [message.role for message in read] == ["system", "developer", "user", "assistant", "tool", "tool"]
    assert {message.name for message in read} == {"n"}


def test_assistant_history_as_the_sdk_sends_it_back():
    reply = valid(
        ChatCompletion,
        CONVERTER.encode(
            ChatRequest(),
            collected(
                blank(CONVERTER),
                [
                    ChatDelta(tool_calls=[ToolCallDelta(id="call_1", name="search", arguments='{"q":1}')]),
                    ChatDelta(finish_reason="tool_calls"),
                ],
            ),
        ),
    )
    said, result = decode_messages(
        reply.choices[0].message.model_dump(),
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "found"}]},
    )
    assert said == Message(
        role="assistant", tool_calls=[ToolCall(name="search", arguments='{"q":1}', id="call_1")]
    )
    assert (result.tool_call_id, result.text) == ("call_1", "found")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"a": 1}', '{"a": 1}'), ({"a": 1}, '{"a":1}'), (None, "{}"), ("", "{}"), ('{"a', '{"a')],
)
def test_arguments_as_text_or_object(arguments, text):
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    (message,) = decode_messages({"role": "assistant", "tool_calls": [call]})
    assert message.tool_calls == (ToolCall(name="f", arguments=text, id="c"),)


def test_deprecated_function_call_in_history():
    said, result = decode_messages(
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "done"},
    )
    assert said.tool_calls == (ToolCall(name="f", arguments="{}"),)
    assert (result.role, result.name, result.content) == ("tool", "f", "done")


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_in_history_by_both_names(name):
    (message,) = decode_messages({"role": "assistant", "content": "x", name: "because"})
    assert (message.reasoning, message.content) == ("because", "x")


def test_refusal_in_history_is_what_was_said():
    (message,) = decode_messages({"role": "assistant", "content": None, "refusal": "no"})
    assert message.content == "no"


# Decoding: tools


def test_tools_reach_the_template_as_they_came():
    tool = {"type": "function", "function": {"name": "f", "x-note": 1, "strict": True}}
    assert decode(tools=[tool], parallel_tool_calls=False).tools == (tool,)
    assert decode(tools=[tool], parallel_tool_calls=False).parallel_tool_calls is False


@pytest.mark.parametrize("tools", [[], None])
def test_no_tools(tools):
    assert decode(tools=tools, tool_choice="auto").tools == ()


@pytest.mark.parametrize(
    ("value", "choice"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice(mode="none")),
        ("required", ToolChoice(mode="required")),
        ({"type": "function", "function": {"name": "fetch"}}, ToolChoice(mode="named", name="fetch")),
    ],
)
def test_tool_choice(value, choice):
    request = decode(tools=[TOOL, OTHER], tool_choice=value)
    assert (request.tool_choice, request.tools) == (choice, (TOOL, OTHER))


def test_allowed_tools_leave_the_others_out():
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "fetch"}}]}
    request = decode(tools=[TOOL, OTHER], tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert (request.tool_choice.mode, request.tools) == ("required", (OTHER,))


def test_deprecated_functions_in_and_out():
    request = decode(functions=[{"name": "f"}], function_call={"name": "f"})
    assert list(request.tools) == [{"type": "function", "function": {"name": "f"}}]
    assert request.tool_choice == ToolChoice(mode="named", name="f")
    deltas = [
        ChatDelta(tool_calls=[ToolCallDelta(id="c", name="f", arguments='{"a"')]),
        ChatDelta(tool_calls=[ToolCallDelta(arguments=":1}")]),
        ChatDelta(finish_reason="tool_calls"),
    ]
    stream, completion = streamed(CONVERTER, request, deltas)
    plain = valid(ChatCompletion, CONVERTER.encode(request, completion)).choices[0]
    last = accumulated(stream).choices[0]
    for choice in (plain, last):
        assert choice.finish_reason == "function_call"
        assert choice.message.function_call.name == "f"
        assert choice.message.function_call.arguments == '{"a":1}'


# Encoding


def test_plain_reply():
    completion = collected(
        blank(CONVERTER),
        [ChatDelta(reasoning="hm"), ChatDelta(text="hello", finish_reason="stop")],
        Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=4, reasoning_tokens=1),
    )
    body = CONVERTER.encode(ChatRequest(), completion)
    reply = valid(ChatCompletion, body)
    assert (reply.id, reply.object, reply.created, reply.model) == (
        "chatcmpl-1",
        "chat.completion",
        1_700_000_000,
        "tiny",
    )
    message = reply.choices[0].message
    assert (message.role, message.content, message.reasoning_content) == ("assistant", "hello", "hm")
    assert "tool_calls" not in body["choices"][0]["message"]
    assert reply.usage.total_tokens == 7
    assert reply.usage.prompt_tokens_details.cached_tokens == 4
    assert reply.usage.completion_tokens_details.reasoning_tokens == 1


def test_usage_details_are_left_out_where_unknown():
    body = CONVERTER.encode(ChatRequest(), collected(blank(CONVERTER), [ChatDelta(finish_reason="stop")]))
    assert body["usage"] == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    assert body["choices"][0]["message"]["content"] == ""


def test_content_is_null_beside_calls_only_where_there_is_no_text():
    call = ChatDelta(tool_calls=[ToolCallDelta(id="c", name="f", arguments="not json")])
    end = ChatDelta(finish_reason="length")
    silent = CONVERTER.encode(ChatRequest(), collected(blank(CONVERTER), [call, end]))["choices"][0]
    assert silent["message"]["content"] is None
    assert silent["finish_reason"] == "length"
    assert silent["message"]["tool_calls"][0]["function"]["arguments"] == "not json"
    spoken = CONVERTER.encode(ChatRequest(), collected(blank(CONVERTER), [ChatDelta(text="\n"), call, end]))
    assert spoken["choices"][0]["message"]["content"] == "\n"


def test_aborted_output_is_a_cut_one_to_clients():
    completion = collected(blank(CONVERTER), [ChatDelta(text="x", finish_reason="abort")])
    assert CONVERTER.encode(ChatRequest(), completion)["choices"][0]["finish_reason"] == "length"


LOGPROBS = [
    TokenLogprob(token="é", logprob=-0.5, id=1, top=[TokenLogprob(token="é", logprob=-0.5)]),
    TokenLogprob(token="\ufffd", logprob=-1.0, id=2, bytes=[195]),
]


def test_logprobs_plain_and_streamed():
    deltas = [
        ChatDelta(text="é", logprobs=LOGPROBS[:1]),
        ChatDelta(logprobs=LOGPROBS[1:]),
        ChatDelta(finish_reason="stop"),
    ]
    stream, completion = streamed(CONVERTER, ChatRequest(), deltas)
    plain = valid(ChatCompletion, CONVERTER.encode(ChatRequest(), completion)).choices[0].logprobs.content
    assert [(token.token, token.logprob, token.bytes) for token in plain] == [
        ("é", -0.5, [195, 169]),
        ("\ufffd", -1.0, [195]),
    ]
    assert plain[0].top_logprobs[0].token == "é"
    assert accumulated(stream).choices[0].logprobs.content == plain


# Streaming


def chunks(stream):
    *read, (event, last) = frames(stream)
    assert (event, last) == (None, "[DONE]")
    assert all(event is None for event, _ in read)
    return [valid(ChatCompletionChunk, data) for _, data in read]


def accumulated(stream) -> Any:
    state = ChatCompletionStreamState()
    for chunk in chunks(stream):
        state.handle_chunk(chunk)
    return state.current_completion_snapshot


def test_frames_of_a_stream():
    deltas = [
        ChatDelta(),
        ChatDelta(text="a\n\nb"),
        ChatDelta(tool_calls=[ToolCallDelta(id="c1", name="f", arguments="")], text="\n"),
        ChatDelta(tool_calls=[ToolCallDelta(arguments='{"')]),
        ChatDelta(
            tool_calls=[
                ToolCallDelta(arguments="}"),
                ToolCallDelta(index=1, id="c2", name="g", arguments="{}"),
            ]
        ),
        ChatDelta(usage=Usage(prompt_tokens=1)),
        ChatDelta(finish_reason="tool_calls"),
    ]
    stream, _ = streamed(CONVERTER, ChatRequest(), deltas)
    read = chunks(stream)
    assert {(c.id, c.object, c.created, c.model) for c in read} == {
        ("chatcmpl-1", "chat.completion.chunk", 1_700_000_000, "tiny")
    }
    got = [chunk.choices[0].delta.model_dump(exclude_unset=True) for chunk in read]
    assert got == [
        {"role": "assistant", "content": ""},
        {"content": "a\n\nb"},
        {
            "content": "\n",
            "tool_calls": [
                {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
            ],
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"'}}]},
        {
            "tool_calls": [
                {"index": 0, "function": {"arguments": "}"}},
                {"index": 1, "id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ]
        },
        {},
    ]
    assert [chunk.choices[0].finish_reason for chunk in read] == [*[None] * 5, "tool_calls"]


def test_usage_chunk_only_where_it_is_asked_for():
    deltas = [ChatDelta(text="x"), ChatDelta(finish_reason="stop")]
    usage = Usage(prompt_tokens=3, completion_tokens=1, cached_tokens=2)
    without, _ = streamed(CONVERTER, ChatRequest(), deltas, usage)
    assert all("usage" not in chunk.model_fields_set for chunk in chunks(without))
    asked, _ = streamed(CONVERTER, ChatRequest(include_usage=True), deltas, usage)
    *others, last = chunks(asked)
    assert all(chunk.choices and chunk.usage is None for chunk in others)
    assert last.choices == []
    assert (last.usage.total_tokens, last.usage.prompt_tokens_details.cached_tokens) == (4, 2)


def test_choice_that_said_nothing_still_begins_and_ends():
    encoder = CONVERTER.stream(ChatRequest(), blank(CONVERTER))
    completion = blank(CONVERTER)
    completion.choices = [Choice(index=0), Choice(index=1, finish_reason="length")]
    read = chunks(encoder.start() + encoder.finish(completion))
    assert [(c.choices[0].index, c.choices[0].delta.role, c.choices[0].finish_reason) for c in read] == [
        (0, "assistant", None),
        (0, None, "stop"),
        (1, "assistant", None),
        (1, None, "length"),
    ]


@given(st.integers(1, 3).flatmap(lambda n: replies(choices=n)))
def test_accumulated_stream_is_the_plain_reply(deltas):
    request = ChatRequest(include_usage=True)
    stream, completion = streamed(CONVERTER, request, deltas, Usage(prompt_tokens=4, completion_tokens=3))
    plain = valid(ChatCompletion, CONVERTER.encode(request, completion))
    got = accumulated(stream)
    assert got.usage == plain.usage
    assert len(got.choices) == len(plain.choices)
    for ours, theirs in zip(plain.choices, got.choices, strict=True):
        assert (theirs.index, theirs.finish_reason) == (ours.index, ours.finish_reason)
        assert (theirs.message.content or "") == (ours.message.content or "")
        assert getattr(theirs.message, "reasoning_content", None) == getattr(
            ours.message, "reasoning_content", None
        )
        assert called(theirs) == called(ours)
    roles = [c.choices[0].index for c in chunks(stream) if c.choices and c.choices[0].delta.role]
    assert roles == list(range(len(plain.choices)))


def called(choice):
    return [
        (call.id, call.type, call.function.name, call.function.arguments)
        for call in choice.message.tool_calls or ()
    ]


def test_sdk_reads_plain_and_streamed_replies():
    deltas = [ChatDelta(text="hel"), ChatDelta(text="lo"), ChatDelta(finish_reason="stop")]
    stream, completion = streamed(CONVERTER, ChatRequest(), deltas)
    plain = client(CONVERTER.encode(ChatRequest(), completion)).chat.completions.create(
        model="tiny", messages=HI
    )
    with client(stream).chat.completions.stream(model="tiny", messages=HI) as events:
        final = events.get_final_completion()
    assert plain.choices[0].message.content == final.choices[0].message.content == "hello"


# Errors

LIMITED = ErrorInfo(
    status=429,
    message="slow down",
    type="rate_limit_error",
    code="rate_limit_exceeded",
    retry_after=1.2,
    should_retry=True,
)


def test_error_before_the_first_byte():
    with pytest.raises(openai.RateLimitError) as caught:
        client(CONVERTER.error(LIMITED, "req_1")).chat.completions.create(model="tiny", messages=HI)
    error: Any = caught.value
    assert (error.code, error.type, error.param, error.request_id) == (
        "rate_limit_exceeded",
        "rate_limit_error",
        None,
        "req_1",
    )
    assert error.body["message"] == "slow down"
    assert error.response.headers["retry-after"] == "2"
    assert error.response.headers["x-should-retry"] == "true"


def test_error_without_retry_advice_has_no_such_headers():
    reply = CONVERTER.error(ErrorInfo(status=404, message="no"), "req_1")
    assert reply.headers == {"x-request-id": "req_1"}


def test_error_inside_a_stream_reaches_the_sdk():
    encoder = CONVERTER.stream(ChatRequest(), blank(CONVERTER))
    stream = encoder.start() + encoder.delta(ChatDelta(text="so far")) + encoder.error(LIMITED)
    assert frames(stream)[-1] == (None, "[DONE]")
    reply = client(stream).chat.completions.create(model="tiny", messages=HI, stream=True)
    assert [next(reply).choices[0].delta.content for _ in range(2)] == ["", "so far"]
    with pytest.raises(openai.APIError) as caught:
        next(reply)
    error: Any = caught.value
    assert (error.code, error.body["reason"]) == ("backend_error", "rate_limit_exceeded")


def test_ping_is_a_comment():
    ping = CONVERTER.stream(ChatRequest(), blank(CONVERTER)).ping()
    assert ping.startswith(b":")
    assert ping.endswith(b"\n\n")


def test_text_chunk_equals_the_general_one():
    """The bytes put together by hand are those that a JSON encoder makes."""
    encoder = CONVERTER.stream(ChatRequest(include_usage=True), blank(CONVERTER))
    encoder.start()
    text = 'quote " back \\ line\n é \U0001f600'
    ((_, data),) = frames(encoder.delta(ChatDelta(text=text)))
    assert json.loads(json.dumps(data)) == {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "tiny",
        "choices": [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}],
        "usage": None,
    }


# Freeform tools

EDIT = {"type": "custom", "custom": {"name": "edit", "description": "edits", "format": {"type": "text"}}}


def test_a_freeform_tool_is_a_function_with_one_string():
    request = decode(tools=[TOOL, EDIT], tool_choice={"type": "custom", "custom": {"name": "edit"}})
    assert request.tool_choice == ToolChoice(mode="named", name="edit")
    (_, function) = request.tools
    assert function["function"]["parameters"]["required"] == ["input"]
    assert refusal({"messages": HI, "tools": [{"type": "custom"}]}).param == "tools[0].custom"


def test_its_call_comes_back_as_text_and_goes_up_again_as_it_came():
    request = decode(tools=[TOOL, EDIT])
    pieces = ['{"input": "+a\\', "nb", '"}']
    deltas = [
        ChatDelta(tool_calls=[ToolCallDelta(id="c0", name="search", arguments="{}")]),
        ChatDelta(tool_calls=[ToolCallDelta(index=1, id="c1", name="edit")]),
        *(ChatDelta(tool_calls=[ToolCallDelta(index=1, arguments=piece)]) for piece in pieces),
        ChatDelta(finish_reason="tool_calls"),
    ]
    stream, completion = streamed(CONVERTER, request, deltas)
    plain = valid(ChatCompletion, CONVERTER.encode(request, completion)).choices[0]
    function, custom = plain.message.tool_calls
    assert (function.type, custom.type, custom.custom.name, custom.custom.input) == (
        "function",
        "custom",
        "edit",
        "+a\nb",
    )
    told = [call for call in streamed_calls(request, stream) if call["index"] == 1]
    assert (told[0]["id"], told[0]["type"], told[0]["custom"]["name"]) == ("c1", "custom", "edit")
    assert "".join(call["custom"]["input"] for call in told) == "+a\nb"
    (said,) = decode_messages(plain.message.model_dump())
    assert [(call.name, json.loads(call.arguments)) for call in said.tool_calls] == [
        ("search", {}),
        ("edit", {"input": "+a\nb"}),
    ]


def streamed_calls(request, stream):
    """The calls' fragments, as the SDK gives them; its types have no freeform calls in chunks."""
    with client(stream) as sdk:
        asked = sdk.chat.completions.create(model="tiny", messages=HI, tools=list(request.tools), stream=True)
        calls = [call for part in asked for call in part.choices[0].delta.tool_calls or ()]
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return [call.model_dump(exclude_unset=True) for call in calls]


def test_an_input_that_never_was_an_object_comes_with_the_end():
    request = decode(tools=[EDIT])
    deltas = [
        ChatDelta(tool_calls=[ToolCallDelta(id="c1", name="edit", arguments="*** Begin")]),
        ChatDelta(finish_reason="tool_calls"),
    ]
    stream, completion = streamed(CONVERTER, request, deltas)
    (call,) = CONVERTER.encode(request, completion)["choices"][0]["message"]["tool_calls"]
    pieces = [each["custom"]["input"] for each in streamed_calls(request, stream)]
    assert call["custom"]["input"] == "".join(pieces) == "*** Begin"


# What stands beside the known fields


def test_files_and_recordings_are_parts():
    pdf = "data:application/pdf;base64,AA=="
    (message,) = decode_messages(
        {
            "role": "user",
            "content": [
                {"type": "file", "file": {"filename": "b.pdf", "file_data": pdf}},
                {"type": "file", "file": {"filename": "n.md", "file_data": "SGk="}},
                {"type": "file", "file": {"file_id": "file-1"}},
                {"type": "input_audio", "input_audio": {"data": "AA==", "format": "mp3"}},
            ],
        }
    )
    assert message.files == (
        FilePart(media_type="application/pdf", url=pdf, name="b.pdf"),
        FilePart(media_type="text/markdown", url="data:text/markdown;base64,SGk=", name="n.md"),
        FilePart(media_type="", extra={"file_id": "file-1"}),
        FilePart(media_type="audio/mpeg", url="data:audio/mpeg;base64,AA=="),
    )


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "file"}, "file"),
        ({"type": "file", "file": {}}, "file.file_data"),
        ({"type": "file", "file": {"file_data": 5}}, "file.file_data"),
        ({"type": "input_audio"}, "input_audio"),
        ({"type": "input_audio", "input_audio": {"data": "AA=="}}, "input_audio.format"),
        ({"type": "image_url"}, "image_url"),
        ({"type": "image_url", "image_url": 5}, "image_url"),
        ({"type": "video_url", "video_url": {}}, "video_url.url"),
    ],
)
def test_what_a_part_lacks_is_named(part, param):
    info = refusal({"messages": [{"role": "user", "content": [part]}]})
    assert info.param == f"messages[0].content[0].{param}"


def test_both_names_of_thinking_are_sent_and_one_counts_on_the_way_back():
    deltas = [ChatDelta(reasoning="hm"), ChatDelta(text="hi"), ChatDelta(finish_reason="stop")]
    stream, completion = streamed(CONVERTER, ChatRequest(), deltas)
    message = CONVERTER.encode(ChatRequest(), completion)["choices"][0]["message"]
    assert (message["reasoning"], message["reasoning_content"]) == ("hm", "hm")
    delta = chunks(stream)[1].choices[0].delta.model_dump(exclude_unset=True)
    assert delta == {"reasoning": "hm", "reasoning_content": "hm"}
    (read,) = decode_messages(message)
    assert (read.reasoning, read.extra) == ("hm", {})
