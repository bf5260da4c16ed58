"""The dialect "openai.responses", read and written as the openai package and Codex CLI do it."""

import logging
from typing import Any, get_args

import msgspec
import openai
import pytest
from hypothesis import given
from openai.types.responses import Response, ResponseStreamEvent

from rolltap import (
    BadRequest,
    ChatDelta,
    ChatRequest,
    Completion,
    ErrorInfo,
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
from rolltap_plugins.openai_dialects import responses
from wire_clients import blank, collected, frames, http_client, replies, streamed, valid

CONVERTER = responses.ResponsesConverter()
TOOL = {"type": "function", "name": "exec", "parameters": {"type": "object"}, "strict": False}
EVENTS = {
    get_args(shape.model_fields["type"].annotation)[0]: shape
    for shape in get_args(get_args(ResponseStreamEvent)[0])
}


def decode(**fields):
    return CONVERTER.decode({"model": "tiny", "input": "hi", **fields})


def decode_items(*items):
    return list(decode(input=list(items)).messages)


def client(reply) -> Any:
    http = http_client(openai, reply)
    return openai.OpenAI(base_url="http://rolltap.test/v1", api_key="x", http_client=http, max_retries=0)


def events(stream):
    """The events of a stream, each valid by the SDK's own type, numbered without a gap."""
    read = []
    for number, (event, data) in enumerate(frames(stream)):
        assert event == data["type"]
        assert data["sequence_number"] == number
        read.append(valid(EVENTS[event], data))
    return read


def shape(stream):
    return [
        f"{event.type.removeprefix('response.')} {getattr(event, 'output_index', '')}".strip()
        for event in events(stream)
    ]


def accumulated(stream) -> Any:
    """The response that the SDK's own helper makes of a stream."""
    with client(stream).responses.stream(model="tiny", input="hi") as read:
        return read.get_final_response()


def call(index=0, name=None, arguments="", call_id=None):
    return ChatDelta(tool_calls=[ToolCallDelta(index=index, id=call_id, name=name, arguments=arguments)])


END = ChatDelta(finish_reason="stop")
CALLED = ChatDelta(finish_reason="tool_calls")


def test_hook_answers_its_own_dialect_only():
    assert isinstance(responses.message_converter("openai.responses"), responses.ResponsesConverter)
    assert responses.message_converter("openai.chat") is None


# Decoding


def test_least_request():
    request = CONVERTER.decode({"input": "hi"})
    assert msgspec.structs.replace(request, state=None) == ChatRequest(
        messages=[Message(role="user", content="hi")], include_usage=True, keep=True
    )


def test_a_reply_is_kept_unless_the_client_says_no():
    assert [decode(**fields).keep for fields in ({}, {"store": None}, {"store": True}, {"store": False})] == [
        True,
        True,
        True,
        False,
    ]


def test_instructions_hold_for_one_request_alone():
    request = decode(instructions="Be brief.", previous_response_id="resp_1")
    assert (request.previous_id, request.num_instructions) == ("resp_1", 1)
    assert [message.role for message in request.messages] == ["system", "user"]
    request = decode(instructions="", previous_response_id="")
    assert (request.previous_id, request.num_instructions) == (None, 0)


def test_a_reply_says_what_it_goes_on_from_and_whether_it_is_kept():
    completion = collected(blank(CONVERTER), [ChatDelta(text="ho"), END])
    body = CONVERTER.encode(decode(previous_response_id="resp_0", store=False), completion)
    assert (body["previous_response_id"], body["store"]) == ("resp_0", False)


def test_empty_text_is_an_empty_message():
    """Fault: `input: ""` was an exception."""
    assert decode(input="").messages == (Message(role="user", content=""),)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["hi"]}, "input[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "hologram"}]}]}, "input[0].content[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "input[0].content[0].input_audio",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "input[0].content[0].file_data",
        ),
        ({"input": [{"type": "compaction_trigger"}]}, "input[0].type"),
        ({"reasoning": {"effort": "lots"}}, "reasoning.effort"),
        ({"reasoning": {"summary": 1}}, "reasoning.summary"),
        ({"reasoning": {"tempo": "slow"}}, "reasoning"),
        ({"reasoning": "high"}, "reasoning"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].image_url",
        ),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "input[0].name"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"instructions": 5}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"n": 2}, "n"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"previous_response_id": 0}, "previous_response_id"),
        ({"store": "no"}, "store"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"name": "x"}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "no"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    ],
)
def test_wrong_field_is_named(fields, param):
    with pytest.raises(BadRequest) as caught:
        decode(**fields)
    info = caught.value.info
    assert (info.status, info.param) == (400, param)
    assert param in info.message


def test_a_request_as_codex_sends_it(caplog):
    body = {
        "model": "tiny",
        "instructions": "You are Codex",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list"}]},
        ],
        "tools": [
            TOOL,
            {
                "type": "namespace",
                "name": "agents",
                "description": "d",
                "tools": [{**TOOL, "name": "spawn"}, TOOL],
            },
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "text": {"verbosity": "low"},
        "client_metadata": {"a": "b"},
    }
    with caplog.at_level(logging.INFO):
        request = CONVERTER.decode(body)
    assert [(message.role, message.content) for message in request.messages] == [
        ("system", "You are Codex"),
        ("developer", "rules"),
        ("user", "list"),
    ]
    assert [tool["function"]["name"] for tool in request.tools] == ["exec", "spawn"]
    assert request.tools[0]["function"] == {"name": "exec", "parameters": {"type": "object"}, "strict": False}
    assert (request.parallel_tool_calls, request.stream) == (False, True)
    assert (request.sampling, request.template_kwargs) == (Sampling(), {"reasoning_effort": "medium"})
    assert "tools[2] is left out" in caplog.text
    assert "tools[1].tools[1] is left out" in caplog.text
    spawned = collected(blank(CONVERTER), [call(0, "spawn", "{}", "c1"), call(1, "exec", "{}", "c2"), CALLED])
    items = CONVERTER.encode(request, spawned)["output"]
    assert [item.get("namespace") for item in items] == ["agents", None]


def test_sampling():
    request = decode(
        max_output_tokens=5,
        temperature=0.1,
        top_p=0.9,
        top_logprobs=2,
        seed=3,
        guided_regex="a",
        user="u",
        chat_template_kwargs={"enable_thinking": False},
    )
    assert request.sampling == Sampling(
        max_tokens=5, temperature=0.1, top_p=0.9, top_logprobs=2, seed=3, extra={"guided_regex": "a"}
    )
    assert (request.client_fields, request.template_kwargs) == ({"user": "u"}, {"enable_thinking": False})


def test_logprobs_are_asked_for_by_include():
    assert decode(include=["message.output_text.logprobs"]).sampling.top_logprobs == 0
    assert decode(include=["reasoning.encrypted_content"]).sampling.top_logprobs is None


@pytest.mark.parametrize(
    ("form", "read"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "json_object"}),
        (
            {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True},
            {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
            },
        ),
    ],
)
def test_text_format_is_a_response_format(form, read):
    assert decode(text={"format": form}).sampling.response_format == read


def test_what_the_assistant_did_in_one_reply_is_one_message():
    read = decode_items(
        {"role": "user", "content": "a"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "short"}],
            "content": [{"type": "reasoning_text", "text": "long"}],
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "so ", "annotations": []}],
        },
        {"type": "message", "role": "assistant", "content": "then"},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "exec", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "exec", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    )
    assert read == [
        Message(role="user", content="a"),
        Message(
            role="assistant",
            content="so then",
            reasoning="long",
            tool_calls=[
                ToolCall(name="exec", arguments='{"a": 1}', id="c1"),
                ToolCall(name="exec", arguments="{}", id="c2"),
            ],
        ),
        Message(role="tool", content="one", tool_call_id="c1"),
        Message(role="tool", content="two", tool_call_id="c2"),
        Message(role="assistant", content="no"),
    ]


def test_encrypted_reasoning_leaves_its_summary():
    (message,) = decode_items(
        {
            "type": "reasoning",
            "encrypted_content": "zzz",
            "summary": [{"type": "summary_text", "text": "short"}],
        }
    )
    assert message == Message(role="assistant", reasoning="short")


def test_custom_tool_calls_in_the_history():
    said, result = decode_items(
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
    )
    assert said.tool_calls == (ToolCall(name="patch", arguments='{"input":"*** Begin"}', id="c"),)
    assert (result.role, result.content, result.tool_call_id) == ("tool", "done", "c")


def test_images_follow_all_results():
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
    read = decode_items(
        {"type": "function_call_output", "call_id": "c1", "output": [image]},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "two"}, image],
        },
        {"role": "user", "content": [{"type": "input_text", "text": "look"}, image]},
        {"type": "function_call_output", "call_id": "c3", "output": [image]},
    )
    part = ImagePart("data:image/png;base64,AA==", extra={"detail": "auto"})
    assert read == [
        Message(role="tool", content="[image]", tool_call_id="c1"),
        Message(role="tool", content="two", tool_call_id="c2"),
        Message(role="user", content=[part, part]),
        Message(role="user", content=[TextPart("look"), part]),
        Message(role="tool", content="[image]", tool_call_id="c3"),
        Message(role="user", content=[part]),
    ]


def test_what_a_providers_own_tools_left_is_left_out(caplog):
    with caplog.at_level(logging.INFO):
        read = decode_items({"type": "web_search_call", "id": "ws_1"}, {"role": "user", "content": "a"})
    assert read == [Message(role="user", content="a")]
    assert "input[0] is left out" in caplog.text


@pytest.mark.parametrize(
    ("value", "choice", "names"),
    [
        (None, ToolChoice(), ["exec", "fetch"]),
        ("none", ToolChoice(mode="none"), ["exec", "fetch"]),
        ("required", ToolChoice(mode="required"), ["exec", "fetch"]),
        ({"type": "function", "name": "exec"}, ToolChoice(mode="named", name="exec"), ["exec", "fetch"]),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "fetch"}]},
            ToolChoice(mode="required"),
            ["fetch"],
        ),
    ],
)
def test_tool_choice(value, choice, names):
    request = decode(tools=[TOOL, {**TOOL, "name": "fetch"}], tool_choice=value)
    assert request.tool_choice == choice
    assert [tool["function"]["name"] for tool in request.tools] == names


# Encoding


def encoded(deltas, usage=None, request=None) -> Any:
    body = CONVERTER.encode(request or ChatRequest(), collected(blank(CONVERTER), deltas, usage))
    return valid(Response, body)


def test_plain_reply():
    request = decode(
        tools=[TOOL], tool_choice={"type": "function", "name": "exec"}, store=False, temperature=0.5
    )
    reply = encoded(
        [ChatDelta(reasoning="hm"), ChatDelta(text="hello"), call(0, "exec", '{"q": 1}', "c1"), CALLED],
        Usage(prompt_tokens=12, completion_tokens=7, cached_tokens=8, reasoning_tokens=2),
        request,
    )
    assert (reply.id, reply.object, reply.status, reply.model) == ("resp_1", "response", "completed", "tiny")
    assert [(item.type, item.id, item.status) for item in reply.output] == [
        ("reasoning", "rs_1_0", "completed"),
        ("message", "msg_1_0", "completed"),
        ("function_call", "fc_1_0", "completed"),
    ]
    assert reply.output[0].content[0].text == "hm"
    assert reply.output_text == "hello"
    assert (reply.output[2].call_id, reply.output[2].arguments) == ("c1", '{"q": 1}')
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.total_tokens) == (12, 7, 19)
    assert reply.usage.input_tokens_details.cached_tokens == 8
    assert reply.usage.output_tokens_details.reasoning_tokens == 2
    assert (reply.tools[0].name, reply.tool_choice.name) == ("exec", "exec")
    assert (reply.store, reply.temperature) == (False, 0.5)


def test_empty_reply_has_an_empty_message():
    assert [item.type for item in encoded([END]).output] == ["message"]
    empty = Completion(id="resp_1", model="tiny", created=0)
    assert valid(Response, CONVERTER.encode(ChatRequest(), empty)).output_text == ""


@pytest.mark.parametrize(
    ("reason", "status", "why"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
        ("abort", "incomplete", None),
    ],
)
def test_status(reason, status, why):
    deltas = [ChatDelta(text="x"), ChatDelta(finish_reason=reason)]
    plain = encoded(deltas)
    stream, _ = streamed(CONVERTER, ChatRequest(), deltas)
    last = events(stream)[-1]
    assert last.type == f"response.{status}"
    for reply in (plain, last.response):
        assert (reply.status, reply.output[0].status) == (status, status)
        assert (reply.incomplete_details.reason if reply.incomplete_details else None) == why


LOGPROBS = [
    TokenLogprob(token="a", logprob=-0.5, top=[TokenLogprob(token="a", logprob=-0.5)]),
    TokenLogprob(token="b", logprob=-1.0),
]


def test_logprobs_plain_and_streamed():
    deltas = [ChatDelta(text="a", logprobs=LOGPROBS[:1]), ChatDelta(logprobs=LOGPROBS[1:]), END]
    stream, _ = streamed(CONVERTER, ChatRequest(), deltas)
    plain = encoded(deltas).output[0].content[0].logprobs
    assert [(token.token, token.logprob, token.bytes) for token in plain] == [
        ("a", -0.5, [97]),
        ("b", -1.0, [98]),
    ]
    assert accumulated(stream).output[0].content[0].logprobs == plain
    (delta,) = [event for event in events(stream) if event.type == "response.output_text.delta"]
    assert [token.token for token in delta.logprobs] == ["a"]


# Streaming


def test_lifecycle_of_a_text():
    stream, _ = streamed(
        CONVERTER, ChatRequest(), [ChatDelta(), ChatDelta(text="a"), ChatDelta(text="b"), END]
    )
    assert shape(stream) == [
        "created",
        "in_progress",
        "output_item.added 0",
        "content_part.added 0",
        "output_text.delta 0",
        "output_text.delta 0",
        "output_text.done 0",
        "content_part.done 0",
        "output_item.done 0",
        "completed",
    ]
    read = events(stream)
    assert {event.item_id for event in read[3:8]} == {read[2].item.id} == {read[8].item.id}
    assert (read[0].response.status, read[0].response.output) == ("in_progress", [])
    assert (read[6].text, read[8].item.content[0].text) == ("ab", "ab")


def test_lifecycle_of_thinking_text_and_interleaved_calls():
    deltas = [
        ChatDelta(reasoning="hm"),
        ChatDelta(text="so"),
        ChatDelta(
            tool_calls=[
                ToolCallDelta(index=0, id="c0", name="f", arguments='{"a":'),
                ToolCallDelta(index=1, id="c1", name="g", arguments=""),
            ]
        ),
        call(0, arguments="1}"),
        CALLED,
    ]
    stream, _ = streamed(CONVERTER, ChatRequest(), deltas)
    assert shape(stream)[2:] == [
        "output_item.added 0",
        "content_part.added 0",
        "reasoning_text.delta 0",
        "reasoning_text.done 0",
        "content_part.done 0",
        "output_item.done 0",
        "output_item.added 1",
        "content_part.added 1",
        "output_text.delta 1",
        "output_text.done 1",
        "content_part.done 1",
        "output_item.done 1",
        "output_item.added 2",
        "function_call_arguments.delta 2",
        "output_item.added 3",
        "function_call_arguments.delta 2",
        "function_call_arguments.done 2",
        "output_item.done 2",
        "function_call_arguments.done 3",
        "output_item.done 3",
        "completed",
    ]
    items = accumulated(stream).output
    assert [(item.call_id, item.name, item.arguments) for item in items[2:]] == [
        ("c0", "f", '{"a":1}'),
        ("c1", "g", "{}"),
    ]


def test_silent_reply_has_its_lifecycle_too():
    stream, _ = streamed(CONVERTER, ChatRequest(), [END])
    assert accumulated(stream).output_text == ""


def test_other_choices_than_the_first_are_not_mixed_in():
    deltas = [
        ChatDelta(text="a"),
        ChatDelta(index=1, text="b"),
        END,
        ChatDelta(index=1, finish_reason="stop"),
    ]
    stream, _ = streamed(CONVERTER, ChatRequest(), deltas)
    assert accumulated(stream).output_text == encoded(deltas).output_text == "a"


@given(replies())
def test_accumulated_stream_is_the_plain_reply(deltas):
    usage = Usage(prompt_tokens=9, completion_tokens=3, cached_tokens=4)
    stream, completion = streamed(CONVERTER, decode(tools=[TOOL]), deltas, usage)
    plain = CONVERTER.encode(decode(tools=[TOOL]), completion)
    read = events(stream)
    added: dict[int, str] = {}
    done: dict[int, Any] = {}
    for event in read:
        if event.type == "response.output_item.added":
            assert event.output_index == len(added)
            added[event.output_index] = event.item.id
        elif event.type == "response.output_item.done":
            assert added[event.output_index] == event.item.id
            done[event.output_index] = event.item
        elif hasattr(event, "item_id"):
            assert added[event.output_index] == event.item_id
            assert event.output_index not in done
    last = read[-1].response
    assert [done[index] for index in range(len(added))] == last.output
    got = last.model_dump(exclude_unset=True)
    assert together(got.pop("output")) == together(plain.pop("output"))
    assert got == plain


def together(items):
    """What was thought, said and called, whatever items it came in: a stream has one for each change."""
    parts = [part for item in items if item["type"] != "function_call" for part in item["content"]]
    said = {
        kind: "".join(part["text"] for part in parts if part["type"] == kind)
        for kind in ("reasoning_text", "output_text")
    }
    calls = [
        (item["call_id"], item["name"], item["arguments"])
        for item in items
        if item["type"] == "function_call"
    ]
    return said, calls, {item["status"] for item in items} - {"completed"}


def test_sdk_reads_plain_and_streamed_replies():
    deltas = [ChatDelta(text="hel"), ChatDelta(text="lo"), END]
    stream, completion = streamed(CONVERTER, ChatRequest(), deltas)
    plain = client(CONVERTER.encode(ChatRequest(), completion)).responses.create(model="tiny", input="hi")
    assert plain.output_text == accumulated(stream).output_text == "hello"


# Errors


def test_error_before_the_first_byte():
    info = ErrorInfo(
        status=404, message="no such model", type="invalid_request_error", code="model_not_found"
    )
    with pytest.raises(openai.NotFoundError) as caught:
        client(CONVERTER.error(info, "req_1")).responses.create(model="tiny", input="hi")
    assert (caught.value.code, caught.value.request_id) == ("model_not_found", "req_1")


def test_error_inside_a_stream_fails_the_response_with_what_there_is():
    encoder = CONVERTER.stream(ChatRequest(), blank(CONVERTER))
    stream = (
        encoder.start() + encoder.delta(ChatDelta(text="so far")) + encoder.delta(call(0, "f", '{"a', "c"))
    )
    stream += encoder.error(ErrorInfo(status=429, message="slow down", code="rate_limit_exceeded"))
    failed = events(stream)[-1]
    assert (failed.type, failed.response.status) == ("response.failed", "failed")
    assert (failed.response.error.code, failed.response.error.message) == ("rate_limit_exceeded", "slow down")
    assert [(item.type, item.status) for item in failed.response.output] == [
        ("message", "completed"),
        ("function_call", "incomplete"),
    ]
