"""The dialect "anthropic.messages", read and written as the anthropic package does it.

The faults that are known from other gateways are named by what went wrong there.
"""

import json
import logging
from typing import Any

import anthropic
import orjson
import pytest
from anthropic.types import Message as SdkMessage
from hypothesis import given

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
    ToolCall,
    ToolCallDelta,
    ToolChoice,
    Usage,
)
from rolltap.record.canonical import fingerprint
from rolltap.server.errors import json_response
from rolltap_plugins import anthropic_messages
from rolltap_plugins.anthropic_messages.requests import decode as decode_body
from wire_clients import blank, collected, frames, http_client, replies, streamed, valid

CONVERTER = anthropic_messages.AnthropicConverter()
HI = [{"role": "user", "content": "hi"}]
TOOL = {"name": "search", "description": "finds", "input_schema": {"type": "object"}}
BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=abc12;"


def decode(**fields):
    return CONVERTER.decode({"model": "tiny", "max_tokens": 10, "messages": HI, **fields})


def decode_messages(*messages):
    return decode(messages=list(messages)).messages


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def text(value, **more):
    return {"type": "text", "text": value, **more}


def result(call_id, content, **more):
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


def client(reply) -> Any:
    http = http_client(anthropic, reply)
    return anthropic.Anthropic(base_url="http://rolltap.test", api_key="x", http_client=http, max_retries=0)


def create(reply, **fields) -> Any:
    return client(reply).messages.create(model="tiny", max_tokens=10, messages=HI, **fields)


def accumulated(stream) -> Any:
    """The message that the SDK's own helper makes of a stream."""
    with client(stream).messages.stream(model="tiny", max_tokens=10, messages=HI) as events:
        return events.get_final_message()


def events(stream):
    read = frames(stream)
    assert all(event == data["type"] for event, data in read)
    return [data for _, data in read]


def shape(stream):
    """A stream's events in short: their types, and of blocks and deltas what they are."""
    short = []
    for data in events(stream):
        inner = data.get("content_block") or data.get("delta") or {}
        short.append(" ".join(filter(None, [data["type"], str(data.get("index", "")), inner.get("type")])))
    return short


def call(index=0, name=None, arguments="", call_id=None):
    return ChatDelta(tool_calls=[ToolCallDelta(index=index, id=call_id, name=name, arguments=arguments)])


END = ChatDelta(finish_reason="stop")
CALLED = ChatDelta(finish_reason="tool_calls")


def test_hook_answers_its_own_dialect_only():
    assert isinstance(
        anthropic_messages.message_converter("anthropic.messages"), anthropic_messages.AnthropicConverter
    )
    assert anthropic_messages.message_converter("openai.chat") is None


# Decoding


def test_least_request():
    assert decode() == ChatRequest(
        model="tiny",
        messages=[Message(role="user", content="hi")],
        sampling=Sampling(max_tokens=10),
        include_usage=True,
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 123}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [user({"type": "text"})]}, "messages[0].content[0].text"),
        ({"messages": [user({"type": "video"})]}, "messages[0].content[0].type"),
        (
            {"messages": [user({"type": "image", "source": {"type": "file"}})]},
            "messages[0].content[0].source",
        ),
        ({"messages": [user({"type": "tool_result"})]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [user(result("c", [{"type": "thinking"}]))]}, "messages[0].content[0].content[0].type"),
        ({"messages": [assistant({"type": "tool_use", "id": "c"})]}, "messages[0].content[0].name"),
        ({"messages": [assistant(IMAGE)]}, "messages[0].content[0].type"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"system": 5}, "system"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": "x"}, "temperature"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"n": 2}, "n"),
        ({"tools": [{"description": "x"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "must"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    ],
)
def test_wrong_field_is_named(fields, param):
    with pytest.raises(BadRequest) as caught:
        decode(**fields)
    info = caught.value.info
    assert (info.status, info.param) == (400, param)
    assert param in info.message


def test_callers_that_are_no_clients_may_send_no_message():
    assert decode_body({"messages": [], "system": "s"}, may_be_empty=True).messages == (
        Message(role="system", content="s"),
    )


def test_sampling():
    request = decode(temperature=0.5, top_p=0.9, top_k=3, stop_sequences=["END"], seed=4, guided_regex="a")
    assert request.sampling == Sampling(
        max_tokens=10, temperature=0.5, top_p=0.9, top_k=3, stop=["END"], seed=4, extra={"guided_regex": "a"}
    )


def test_fields_that_change_no_token_are_kept_apart():
    """Fault: long user ids were refused."""
    fields = {
        "metadata": {"user_id": "u" * 500},
        "service_tier": "auto",
        "context_management": {"edits": []},
        "output_config": {"effort": "high"},
    }
    request = decode(**fields)
    del fields["output_config"]
    assert (request.client_fields, request.upstream) == (fields, {"reasoning_effort": "high"})
    assert (request.sampling.names(), request.template_kwargs) == ({"max_tokens"}, {})


def test_output_format_is_a_response_format():
    request = decode(output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}})
    assert request.sampling.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": {"type": "object"}},
    }


@pytest.mark.parametrize(
    ("thinking", "kwargs"),
    [
        (None, {}),
        ({"type": "adaptive"}, {}),
        ({"type": "enabled", "budget_tokens": 2000}, {"enable_thinking": True}),
        ({"type": "disabled"}, {"enable_thinking": False}),
    ],
)
def test_thinking_is_switched_only_where_the_client_says_so(thinking, kwargs):
    """Fault: thinking was on though nobody had asked for it."""
    assert decode(thinking=thinking).template_kwargs == kwargs


@pytest.mark.parametrize(
    ("system", "read"),
    [
        ("rules", "rules"),
        ([text("system rule"), "extra"], "system rule extra"),
        ([{"text": "system rule"}], "system rule"),
        ([text("a", cache_control={"type": "ephemeral"})], "a"),
        ([text(BILLING), text("You are"), text("helpful")], "You are helpful"),
        (f"{BILLING}\nYou are helpful", "You are helpful"),
        ("mind x-anthropic-billing-header: it stays", "mind x-anthropic-billing-header: it stays"),
    ],
)
def test_system_prompt_without_its_volatile_part(system, read):
    message = decode(system=system).messages[0]
    assert (message.role, message.text) == ("system", read)


@pytest.mark.parametrize("system", [None, "", [], [text(BILLING)]])
def test_no_system_prompt(system):
    assert [message.role for message in decode(system=system).messages] == ["user"]


def test_system_message_among_the_messages():
    """Fault: the role "system" inside messages was refused."""
    read = decode_messages(*HI, {"role": "system", "content": [text("note")]}, assistant(text("ok")))
    assert [(message.role, message.text) for message in read] == [
        ("user", "hi"),
        ("system", "note"),
        ("assistant", "ok"),
    ]


def test_user_content():
    """As the any-llm backend's callers know it: texts are lines, beside an image each is a part."""
    url = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "doc"}}
    found = {"type": "search_result", "source": "s", "title": "t", "content": [text("1"), text("2")]}
    read = decode_messages(
        user(text("a"), text("b")), user(text("look"), url, IMAGE), user(document, found), user()
    )
    assert [message.content for message in read] == [
        "a\nb",
        (TextPart("look"), ImagePart("http://x/y.png"), ImagePart("data:image/png;base64,AA==")),
        "doc\n1\n2",
        "",
    ]


def test_cache_marks_that_wander_change_nothing():
    marked = user(text("a", cache_control={"type": "ephemeral"}), text("b"))
    moved = user(text("a"), text("b", cache_control={"type": "ephemeral"}))
    messages = [decode_messages(one)[0] for one in (marked, moved, user(text("a"), text("b")))]
    assert [message.text for message in messages] == ["a\nb"] * 3
    assert len({fingerprint(message) for message in messages}) == 1
    mark = {"cache_control": {"type": "ephemeral"}}
    assert [[part.extra for part in message.content] for message in messages[:2]] == [[mark, {}], [{}, mark]]


def test_history_with_thinking_and_calls():
    """Fault: thinking in the history became a content part."""
    (message,) = decode_messages(
        assistant(
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "zzz"},
            text("a"),
            text("b"),
            {"type": "tool_use", "id": "c1", "name": "search", "input": {"q": "ü"}},
            {"type": "tool_use", "id": "c2", "name": "fetch"},
        )
    )
    assert message == Message(
        role="assistant",
        content="a\nb",
        reasoning="hm",
        tool_calls=[
            ToolCall(name="search", arguments='{"q":"ü"}', id="c1"),
            ToolCall(name="fetch", arguments="{}", id="c2"),
        ],
    )


def test_results_come_first_and_text_and_images_after():
    """Faults: of parallel results one was lost where it was an image; text beside results came between them."""
    read = decode_messages(
        user(text("and now?"), result("c1", "one"), result("c2", [text("two"), IMAGE]), result("c3", [IMAGE]))
    )
    image = ImagePart("data:image/png;base64,AA==")
    assert read == (
        Message(role="tool", tool_call_id="c1", content="one"),
        Message(role="tool", tool_call_id="c2", content="two"),
        Message(role="tool", tool_call_id="c3", content="[image]"),
        Message(role="user", content=[image, image, TextPart("and now?")]),
    )


@pytest.mark.parametrize(
    ("content", "is_error", "read"),
    [
        ("gone", True, "Error: gone"),
        ([text("a"), text("b")], False, "a\nb"),
        (None, True, "Error"),
        ([], None, ""),
    ],
)
def test_results_say_whether_they_are_errors(content, is_error, read):
    """Fault: is_error was lost."""
    (message,) = decode_messages(user(result("c", content, is_error=is_error)))
    assert (message.role, message.content) == ("tool", read)


def test_tools_in_openais_shape(caplog):
    strict = {"name": "t", "strict": True, "type": "custom", "cache_control": {"type": "ephemeral"}}
    with caplog.at_level(logging.INFO):
        request = decode(tools=[TOOL, strict, {"type": "web_search_20250305", "name": "web_search"}])
    assert request.tools == (
        {
            "type": "function",
            "function": {"name": "search", "description": "finds", "parameters": {"type": "object"}},
        },
        {"type": "function", "function": {"name": "t", "strict": True}},
    )
    assert "web_search_20250305" in caplog.text


def test_no_tools_are_no_tools():
    """Fault: an empty list of tools was sent on."""
    assert decode(tools=[], tool_choice={"type": "auto"}).tools == ()


@pytest.mark.parametrize(
    ("choice", "read", "parallel"),
    [
        (None, ToolChoice(), None),
        ({"type": "auto"}, ToolChoice(), None),
        ({"type": "none"}, ToolChoice(mode="none"), None),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolChoice(mode="required"), False),
        (
            {"type": "tool", "name": "search", "disable_parallel_tool_use": False},
            ToolChoice(mode="named", name="search"),
            True,
        ),
    ],
)
def test_tool_choice(choice, read, parallel):
    request = decode(tools=[TOOL], tool_choice=choice)
    assert (request.tool_choice, request.parallel_tool_calls) == (read, parallel)


# Encoding


def encoded(deltas, usage=None, request=None) -> Any:
    body = CONVERTER.encode(request or ChatRequest(), collected(blank(CONVERTER), deltas, usage))
    return body, valid(SdkMessage, body)


def test_plain_reply():
    body, reply = encoded(
        [ChatDelta(reasoning="hm"), ChatDelta(text="hello"), call(0, "search", '{"q": 1}', "c1"), CALLED],
        Usage(prompt_tokens=12, completion_tokens=7),
    )
    assert (reply.id, reply.type, reply.role, reply.model) == ("msg_1", "message", "assistant", "tiny")
    assert [block.type for block in reply.content] == ["thinking", "text", "tool_use"]
    assert (reply.content[0].thinking, reply.content[1].text) == ("hm", "hello")
    assert (reply.content[2].id, reply.content[2].name, reply.content[2].input) == ("c1", "search", {"q": 1})
    assert (reply.stop_reason, reply.stop_sequence) == ("tool_use", None)
    assert body["usage"] == {"input_tokens": 12, "output_tokens": 7, "cache_read_input_tokens": 0}


def test_cached_tokens_are_told_apart():
    """Fault: cached tokens were counted twice, and not reported in streams."""
    usage = Usage(prompt_tokens=12, completion_tokens=7, cached_tokens=8)
    counts = {"input_tokens": 4, "output_tokens": 7, "cache_read_input_tokens": 8}
    body, _ = encoded([END], usage)
    stream, _ = streamed(CONVERTER, ChatRequest(), [END], usage)
    assert body["usage"] == events(stream)[-2]["usage"] == counts
    final = accumulated(stream).usage
    assert (final.input_tokens, final.output_tokens, final.cache_read_input_tokens) == (4, 7, 8)


def test_reply_without_choices_is_an_empty_turn():
    """Fault: `choices: []` was an exception."""
    body = CONVERTER.encode(ChatRequest(), Completion(id="msg_1", model="tiny", created=0))
    assert (body["content"], body["stop_reason"]) == ([], "end_turn")
    encoder = CONVERTER.stream(ChatRequest(), blank(CONVERTER))
    final = accumulated(encoder.start() + encoder.finish(blank(CONVERTER)))
    assert (final.content, final.stop_reason) == ([], "end_turn")


@pytest.mark.parametrize(
    ("deltas", "reason"),
    [
        ([END], "end_turn"),
        ([ChatDelta(finish_reason="length")], "max_tokens"),
        ([ChatDelta(finish_reason="abort")], "max_tokens"),
        ([ChatDelta(finish_reason="content_filter")], "refusal"),
        ([call(0, "f", "{}", "c"), CALLED], "tool_use"),
        ([call(0, "f", "{}", "c"), END], "tool_use"),
        ([ChatDelta(text="x"), call(0, "f", "{}", "c"), CALLED], "tool_use"),
        ([call(0, "f", '{"a', "c"), ChatDelta(finish_reason="length")], "max_tokens"),
    ],
)
def test_stop_reason_plain_and_streamed(deltas, reason):
    """Fault: text, then a call, and the reason was end_turn."""
    body, _ = encoded(deltas)
    stream, _ = streamed(CONVERTER, ChatRequest(), deltas)
    assert body["stop_reason"] == accumulated(stream).stop_reason == reason


@pytest.mark.parametrize(
    ("own", "answer"), [(["END"], ("stop_sequence", "END")), (["other"], ("end_turn", None))]
)
def test_matched_stop_string_is_named_where_it_is_the_clients(own, answer):
    """Fault: a stop string was an end_turn."""
    request = ChatRequest(sampling=Sampling(stop=own))
    deltas = [ChatDelta(text="x"), ChatDelta(finish_reason="stop", stop_sequence="END")]
    body, _ = encoded(deltas, request=request)
    stream, _ = streamed(CONVERTER, request, deltas)
    final = accumulated(stream)
    assert (body["stop_reason"], body["stop_sequence"]) == (final.stop_reason, final.stop_sequence) == answer


@pytest.mark.parametrize("arguments", ['{"q": ', "[1]", '"q"', "nonsense"])
def test_malformed_arguments_reach_the_client_as_text(arguments):
    """Fault: malformed arguments became a silent `{}`."""
    deltas = [call(0, "f", arguments, "c"), CALLED]
    body, _ = encoded(deltas)
    stream, _ = streamed(CONVERTER, ChatRequest(), deltas)
    (block,) = body["content"]
    assert block["type"] == "text"
    assert arguments in block["text"]
    final = accumulated(stream)
    assert (final.content[0].text, final.stop_reason) == (block["text"], "end_turn")
    assert body["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    "number", ["9223372036854775807", "18446744073709551616", "-" + "9" * 40, "1.50", "-0"]
)
def test_numbers_are_the_models_own_plain_and_streamed(number):
    deltas = [call(0, "f", f'{{"n": {number}}}', "c"), CALLED]
    stream, _ = streamed(CONVERTER, ChatRequest(), deltas)
    plain = encoded(deltas)[0]["content"][0]["input"]
    assert plain == json.loads(f'{{"n": {number}}}')
    assert json.loads(json_response(plain).body) == plain
    pieces = [data["delta"].get("partial_json", "") for data in events(stream) if "delta" in data]
    assert "".join(pieces) == f'{{"n": {number}}}'


@pytest.mark.parametrize("arguments", ["", "{}", " {} "])
def test_call_without_arguments(arguments):
    deltas = [call(0, "f", arguments, "c"), CALLED]
    stream, _ = streamed(CONVERTER, ChatRequest(), deltas)
    assert encoded(deltas)[0]["content"][0]["input"] == accumulated(stream).content[0].input == {}


def test_thinking_that_was_switched_off_is_not_shown():
    request = decode(thinking={"type": "disabled"})
    deltas = [ChatDelta(reasoning="hm"), ChatDelta(text="x"), END]
    stream, _ = streamed(CONVERTER, request, deltas)
    assert [block["type"] for block in encoded(deltas, request=request)[0]["content"]] == ["text"]
    assert [block.type for block in accumulated(stream).content] == ["text"]


# Streaming


def test_text_stream():
    """The order and the usage that the any-llm backend's callers know."""
    deltas = [ChatDelta(), ChatDelta(text="hel"), ChatDelta(text="lo"), END]
    stream, _ = streamed(CONVERTER, ChatRequest(), deltas, Usage(completion_tokens=2))
    assert shape(stream) == [
        "message_start",
        "content_block_start 0 text",
        "content_block_delta 0 text_delta",
        "content_block_delta 0 text_delta",
        "content_block_stop 0",
        "message_delta",
        "message_stop",
    ]
    started, *_, ended, _ = events(stream)
    message = started["message"]
    assert (message["content"], message["stop_reason"], message["model"]) == ([], None, "tiny")
    assert ended["usage"] == {"output_tokens": 2, "cache_read_input_tokens": 0}


def test_thinking_is_opened_signed_and_closed_before_text():
    """Faults: a reasoning delta without its block; the first chunk after thinking was lost."""
    deltas = [
        ChatDelta(reasoning="h"),
        ChatDelta(reasoning="m"),
        ChatDelta(text="so"),
        ChatDelta(text="."),
        END,
    ]
    stream, _ = streamed(CONVERTER, ChatRequest(), deltas)
    assert shape(stream)[1:-2] == [
        "content_block_start 0 thinking",
        "content_block_delta 0 thinking_delta",
        "content_block_delta 0 thinking_delta",
        "content_block_delta 0 signature_delta",
        "content_block_stop 0",
        "content_block_start 1 text",
        "content_block_delta 1 text_delta",
        "content_block_delta 1 text_delta",
        "content_block_stop 1",
    ]
    thinking, said = accumulated(stream).content
    assert (thinking.thinking, said.text) == ("hm", "so.")
    assert thinking.signature


def test_fragments_of_one_call_are_one_block():
    """Fault: the first fragment, `{"`, was lost. As the any-llm backend's callers know it: one whole delta."""
    deltas = [
        call(0, "get_weather", '{"', "call_abc"),
        call(arguments='city":'),
        call(arguments='"paris"}'),
        CALLED,
    ]
    stream, _ = streamed(CONVERTER, ChatRequest(), deltas)
    assert shape(stream) == [
        "message_start",
        "content_block_start 0 tool_use",
        "content_block_delta 0 input_json_delta",
        "content_block_stop 0",
        "message_delta",
        "message_stop",
    ]
    start, delta = events(stream)[1:3]
    assert start["content_block"] == {
        "type": "tool_use",
        "id": "call_abc",
        "name": "get_weather",
        "input": {},
    }
    assert json.loads(delta["delta"]["partial_json"]) == {"city": "paris"}


def test_interleaved_calls_are_blocks_of_their_own():
    """Faults: two calls in a row were one block; fragments 0, 1, 0 reached the wrong one."""
    both = ChatDelta(
        tool_calls=[
            ToolCallDelta(index=0, id="call_0", name="alpha", arguments='{"a":'),
            ToolCallDelta(index=1, id="call_1", name="beta", arguments='{"b":'),
        ]
    )
    deltas = [both, call(0, arguments="1}"), call(1, arguments="2}"), CALLED]
    stream, _ = streamed(CONVERTER, ChatRequest(), deltas)
    content = accumulated(stream).content
    assert [(block.id, block.name, block.input) for block in content] == [
        ("call_0", "alpha", {"a": 1}),
        ("call_1", "beta", {"b": 2}),
    ]
    assert [line.split()[:2] for line in shape(stream)[1:-2]] == [
        [kind, str(index)]
        for index in (0, 1)
        for kind in ("content_block_start", "content_block_delta", "content_block_stop")
    ]


def test_text_and_a_fragment_in_one_delta_are_both_kept():
    """Fault: content "\\n" and an argument's fragment in one chunk, and one of them was lost."""
    both = ChatDelta(text="\n", tool_calls=[ToolCallDelta(id="c", name="f", arguments='{"a":1}')])
    stream, _ = streamed(CONVERTER, ChatRequest(), [both, CALLED])
    said, called = accumulated(stream).content
    assert (said.text, called.input) == ("\n", {"a": 1})


def test_other_choices_than_the_first_are_not_mixed_in():
    deltas = [
        ChatDelta(text="a"),
        ChatDelta(index=1, text="b"),
        END,
        ChatDelta(index=1, finish_reason="stop"),
    ]
    stream, _ = streamed(CONVERTER, ChatRequest(), deltas)
    assert accumulated(stream).content[0].text == encoded(deltas)[0]["content"][0]["text"] == "a"


@given(replies())
def test_accumulated_stream_is_the_plain_reply(deltas):
    usage = Usage(prompt_tokens=9, completion_tokens=3, cached_tokens=4)
    stream, completion = streamed(CONVERTER, ChatRequest(), deltas, usage)
    plain = CONVERTER.encode(ChatRequest(), completion)
    got = rebuilt(stream)
    assert together(got["content"]) == together(plain["content"])
    assert {key: got[key] for key in ("stop_reason", "stop_sequence", "usage")} == {
        key: plain[key] for key in ("stop_reason", "stop_sequence", "usage")
    }


def rebuilt(stream):
    """A message from its stream, with every rule about blocks checked: no gaps, one open at a time."""
    first, *middle, ended, stopped = events(stream)
    assert (first["type"], ended["type"], stopped["type"]) == (
        "message_start",
        "message_delta",
        "message_stop",
    )
    content: list[dict[str, Any]] = []
    open_at = None
    for event in middle:
        if event["type"] == "content_block_start":
            assert (open_at, event["index"]) == (None, len(content))
            open_at = event["index"]
            content.append({**event["content_block"], "json": ""})
            continue
        assert event["index"] == open_at
        if event["type"] == "content_block_stop":
            block = content[-1]
            if partial := block.pop("json"):
                block["input"] = orjson.loads(partial)
            open_at = None
            continue
        delta = event["delta"]
        key = {"input_json_delta": "json"}.get(delta["type"], delta["type"].removesuffix("_delta"))
        content[-1][key] += delta.get("partial_json", "") or delta.get(key, "")
    assert open_at is None
    usage = first["message"]["usage"] | ended["usage"]
    return {**first["message"], "content": content, **ended["delta"], "usage": usage}


def together(content):
    """What was said, whatever blocks it came in: a stream has one for each change from thinking to text."""
    said = ["".join(block.get(key, "") for block in content) for key in ("thinking", "text")]
    return said, [block for block in content if block["type"] == "tool_use"]


def test_sdk_reads_plain_and_streamed_replies():
    deltas = [ChatDelta(text="hel"), ChatDelta(text="lo"), END]
    stream, completion = streamed(CONVERTER, ChatRequest(), deltas)
    assert create(CONVERTER.encode(ChatRequest(), completion)).content[0].text == "hello"
    assert accumulated(stream).content[0].text == "hello"


def test_ping_is_an_event_that_the_sdk_passes_over():
    encoder = CONVERTER.stream(ChatRequest(), blank(CONVERTER))
    deltas = [ChatDelta(text="hello"), END]
    completion = collected(blank(CONVERTER), deltas)
    stream = (
        encoder.start()
        + encoder.ping()
        + encoder.delta(deltas[0])
        + encoder.ping()
        + encoder.finish(completion)
    )
    assert accumulated(stream).content[0].text == "hello"
    assert shape(stream)[1] == "ping"


# Errors


@pytest.mark.parametrize(
    ("status", "code", "sent", "kind"),
    [
        (400, None, 400, "invalid_request_error"),
        (401, "invalid_api_key", 401, "authentication_error"),
        (402, "insufficient_quota", 402, "billing_error"),
        (403, "permission_denied", 403, "permission_error"),
        (404, "model_not_found", 404, "not_found_error"),
        (409, "conflict", 409, "conflict_error"),
        (413, "request_too_large", 413, "request_too_large"),
        (418, None, 418, "invalid_request_error"),
        (422, None, 400, "invalid_request_error"),
        (429, "rate_limit_exceeded", 429, "rate_limit_error"),
        (500, "api_error", 500, "api_error"),
        (502, "upstream_unreachable", 502, "api_error"),
        (503, "overloaded", 529, "overloaded_error"),
        (504, "timeout", 504, "timeout_error"),
    ],
)
def test_error_in_this_dialects_words(status, code, sent, kind):
    reply = CONVERTER.error(ErrorInfo(status=status, message="why", code=code), "req_1")
    assert reply.status == sent
    assert reply.body == {
        "type": "error",
        "error": {"type": kind, "message": "why"},
        "request_id": "req_1",
    }


def test_sdk_reads_errors():
    """Faults: retry-after was lost; an unknown model was answered in OpenAI's envelope."""
    limited = ErrorInfo(status=429, message="slow down", retry_after=2.5, should_retry=False)
    with pytest.raises(anthropic.RateLimitError) as caught:
        create(CONVERTER.error(limited, "req_1"))
    error: Any = caught.value
    assert (error.request_id, error.body["error"]["message"]) == ("req_1", "slow down")
    assert error.response.headers["retry-after"] == "3"
    assert error.response.headers["x-should-retry"] == "false"
    with pytest.raises(anthropic.NotFoundError):
        create(CONVERTER.error(ErrorInfo(status=404, message="no", code="model_not_found"), "req_1"))


def test_context_overflow_says_what_clients_look_for():
    """Fault: clients did not know that they had to shorten the conversation."""
    info = ErrorInfo(status=400, message="maximum context length is 9", code="context_length_exceeded")
    assert (
        CONVERTER.error(info, "r").body["error"]["message"]
        == "prompt is too long: maximum context length is 9"
    )


def test_error_inside_a_stream_ends_it():
    encoder = CONVERTER.stream(ChatRequest(), blank(CONVERTER))
    info = ErrorInfo(status=503, message="stream broke", code="overloaded")
    stream = encoder.start() + encoder.delta(ChatDelta(text="x")) + encoder.error(info)
    assert events(stream)[-1] == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "stream broke"},
    }
    with pytest.raises(anthropic.APIStatusError, match="stream broke"):
        accumulated(stream)
