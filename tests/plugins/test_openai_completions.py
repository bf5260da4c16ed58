"""The dialect "openai.completions", read and written as the openai package does it."""

import re
from typing import Any

import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion

from rolltap import BadRequest, ChatDelta, ChatRequest, ErrorInfo, Sampling, TokenLogprob, Usage
from rolltap_plugins.openai_dialects import completions
from wire_clients import blank, collected, frames, http_client, replies, streamed, valid

CONVERTER = completions.CompletionsConverter()


def decode(**fields):
    return CONVERTER.decode({"prompt": "once", **fields})


def chunks(stream):
    *read, (_, last) = frames(stream)
    assert last == "[DONE]"
    return [data for _, data in read]


def test_hook_answers_its_own_dialect_only():
    assert isinstance(completions.message_converter("openai.completions"), completions.CompletionsConverter)
    assert completions.message_converter("openai.chat") is None


def test_least_request_gets_openais_default_length():
    request = CONVERTER.decode({"prompt": "once"})
    assert msgspec.structs.replace(request, state=None) == ChatRequest(
        prompt="once", sampling=Sampling(max_tokens=16)
    )


@pytest.mark.parametrize(
    ("prompt", "read"),
    [("a", "a"), ([1, 0, 2], (1, 0, 2)), (["a"], "a"), ([[1, 2]], (1, 2))],
)
def test_prompt_of_every_shape(prompt, read):
    assert decode(prompt=prompt).prompt == read


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": [[1], [2, "x"]]}, "prompt[1][1]"),
        ({"prompt": ["a", 5]}, "prompt[1]"),
        ({"prompt": ["a"] * 1025}, "prompt"),
        ({"echo": True, "logprobs": 0, "stream": True}, "stream"),
        ({"prompt_logprobs": 1, "stream": True}, "stream"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"stream_options": {"surprise": True}}, "stream_options"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [1, -1]}, "prompt[1]"),
        ({"prompt": [2**31]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"suffix": "the end"}, "suffix"),
        ({"n": 2, "best_of": 3}, "best_of"),
        ({"best_of": 2}, "best_of"),
        ({"prompt": [1], "echo": True}, "echo"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": "many"}, "max_tokens"),
    ],
)
def test_wrong_field_is_named(fields, param):
    with pytest.raises(BadRequest, match=re.escape(param)) as caught:
        decode(**fields)
    assert (caught.value.info.status, caught.value.info.param) == (400, param)


def test_missing_prompt_is_named():
    with pytest.raises(BadRequest, match="prompt is missing"):
        CONVERTER.decode({"model": "tiny"})


def test_parameters_arrive():
    request = decode(
        model="tiny",
        n=2,
        best_of=2,
        max_tokens=5,
        logprobs=1,
        stop=["x"],
        suffix="",
        truncate_prompt_tokens=4,
        user="u",
        stream=True,
        stream_options={"include_usage": True},
    )
    assert request.sampling == Sampling(
        n=2, max_tokens=5, top_logprobs=1, stop=["x"], extra={"truncate_prompt_tokens": 4}
    )
    assert (request.model, request.stream, request.include_usage) == ("tiny", True, True)
    assert request.client_fields == {"user": "u"}


TOKENS = [
    TokenLogprob(token=" up", logprob=-0.5, top=[TokenLogprob(token=" up", logprob=-0.5)]),
    TokenLogprob(token="on", logprob=-0.25),
]


def test_plain_reply_with_logprobs():
    deltas = [ChatDelta(text=" upon", logprobs=TOKENS), ChatDelta(finish_reason="length")]
    completion = collected(blank(CONVERTER), deltas, Usage(prompt_tokens=1, completion_tokens=2))
    reply = valid(Completion, CONVERTER.encode(ChatRequest(prompt="once"), completion))
    assert (reply.id, reply.object, reply.model) == ("cmpl-1", "text_completion", "tiny")
    (choice,) = reply.choices
    assert (choice.index, choice.text, choice.finish_reason) == (0, " upon", "length")
    assert choice.logprobs.tokens == [" up", "on"]
    assert choice.logprobs.token_logprobs == [-0.5, -0.25]
    assert choice.logprobs.top_logprobs == [{" up": -0.5}, {}]
    assert choice.logprobs.text_offset == [0, 3]
    assert reply.usage.total_tokens == 3


def test_text_offsets_go_on_through_a_stream():
    deltas = [ChatDelta(text=" up", logprobs=TOKENS[:1]), ChatDelta(text="on", logprobs=TOKENS[1:])]
    stream, _ = streamed(CONVERTER, ChatRequest(prompt="once"), [*deltas, ChatDelta(finish_reason="stop")])
    offsets = [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks(stream)[:2]]
    assert offsets == [[0], [3]]


def test_echo():
    request = decode(echo=True)
    deltas = [ChatDelta(text=" upon"), ChatDelta(finish_reason="stop")]
    stream, completion = streamed(CONVERTER, request, deltas)
    assert CONVERTER.encode(request, completion)["choices"][0]["text"] == "once upon"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks(stream)) == "once upon"


def test_text_that_looks_like_a_call_is_text():
    completion = collected(blank(CONVERTER), [ChatDelta(text="<tool_call>", finish_reason="tool_calls")])
    assert CONVERTER.encode(ChatRequest(prompt="x"), completion)["choices"][0]["finish_reason"] == "stop"


@given(st.integers(1, 3).flatmap(lambda n: replies(choices=n, tools=False, reasoning=False)), st.booleans())
def test_accumulated_stream_is_the_plain_reply(deltas, echo):
    request = ChatRequest(prompt="once", echo=echo, include_usage=True)
    stream, completion = streamed(CONVERTER, request, deltas, Usage(prompt_tokens=4, completion_tokens=3))
    plain = CONVERTER.encode(request, completion)
    *read, last = chunks(stream)
    assert (last["choices"], last["usage"]) == ([], plain["usage"])
    for choice in plain["choices"]:
        own = [chunk["choices"][0] for chunk in read if chunk["choices"][0]["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in own) == choice["text"]
        assert [p["finish_reason"] for p in own] == [*[None] * (len(own) - 1), choice["finish_reason"]]


def test_sdk_reads_plain_and_streamed_replies_and_errors():
    deltas = [ChatDelta(text=" upon"), ChatDelta(text=" a"), ChatDelta(finish_reason="stop")]
    stream, completion = streamed(CONVERTER, ChatRequest(prompt="once"), deltas)

    def create(reply, **fields) -> Any:
        http = http_client(openai, reply)
        client = openai.OpenAI(
            base_url="http://rolltap.test/v1", api_key="x", http_client=http, max_retries=0
        )
        return client.completions.create(model="tiny", prompt="once", **fields)

    assert create(CONVERTER.encode(ChatRequest(prompt="once"), completion)).choices[0].text == " upon a"
    assert "".join(chunk.choices[0].text for chunk in create(stream, stream=True)) == " upon a"
    info = ErrorInfo(status=504, message="slow", code="timeout")
    with pytest.raises(openai.InternalServerError) as caught:
        create(CONVERTER.error(info, "req_1"))
    assert (caught.value.code, caught.value.request_id) == ("timeout", "req_1")
    encoder = CONVERTER.stream(ChatRequest(prompt="once"), blank(CONVERTER))
    failed = encoder.start() + encoder.delta(ChatDelta(text="x")) + encoder.error(info)
    with pytest.raises(openai.APIError, match="slow"):
        list(create(failed, stream=True))
