"""The record under everything that makes others drift: what comes back changed, cuts, gaps, odd tokens."""

import json

import pytest

from rolltap.testing import Reply, ScriptedTokenBackend

TOOLS = [
    {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}
]
RAW_CALL = '<tool_call>\n{"name": "search", "arguments": {"q": "Köln", "n": 1.0, "deep": {"b": [1, 2], "a": null}}}\n</tool_call>'
USER = {"role": "user", "content": "a"}
NEXT = {"role": "user", "content": "b"}


@pytest.fixture
async def start(rolltap_serve, rolltap_tokenizer):
    async def begin(*script, **options):
        backend = ScriptedTokenBackend(rolltap_tokenizer, script)
        server = await rolltap_serve(backend, **options)
        return server, backend, await server.session()

    return begin


async def chat(server, session, messages, **options):
    status, body = await server.post(f"/{session}/v1/chat/completions", {"messages": messages, **options})
    assert status == 200, body
    return body["choices"][0]["message"]


def assistant(**fields):
    return {"role": "assistant", **fields}


@pytest.mark.parametrize(
    "sent_back",
    [
        assistant(content="The answer."),
        assistant(content="  The answer.\n"),
        assistant(content=[{"type": "text", "text": "The answer."}]),
        assistant(content="The answer.", tool_calls=[], refusal=None, audio=None, name="bot"),
        assistant(content="The answer.", reasoning="forgotten"),
        assistant(content="The answer.", reasoning_content="Let me think."),
        assistant(content="<think>\nLet me think.\n</think>\n\nThe answer."),
    ],
    ids=[
        "plain",
        "spaces",
        "parts",
        "extra keys",
        "other thinking",
        "thinking sent back",
        "thinking in content",
    ],
)
@pytest.mark.parametrize("parser", ["", "think"])
async def test_an_answer_that_comes_back_changed_still_matches(start, sent_back, parser):
    server, backend, session = await start(
        "<think>\nLet me think.\n</think>\n\nThe answer.", "Then.", model={"reasoning_parser": parser}
    )
    await chat(server, session, [USER])
    await chat(server, session, [USER, sent_back, NEXT])
    (node,) = await server.nodes(session)
    first, second = backend.calls
    recorded = first.prompt_ids + first.output_ids[0]
    assert second.prompt_ids[: len(recorded)] == recorded
    assert node["metadata"]["branch_reason"] is None
    assert "Let me think." in node["full_text"]


def sent_calls(arguments, **fields):
    call = {"id": "call_x", "type": "function", "function": {"name": "search", "arguments": arguments}}
    return assistant(tool_calls=[call | fields.pop("call", {})], **fields)


VALUE = {"q": "Köln", "n": 1.0, "deep": {"b": [1, 2], "a": None}}


@pytest.mark.parametrize(
    "sent_back",
    [
        sent_calls(json.dumps(VALUE), content=None),
        sent_calls(json.dumps(VALUE, indent=2, ensure_ascii=False), content=""),
        sent_calls(json.dumps(dict(reversed(VALUE.items())), separators=(",", ":"))),
        sent_calls('{"deep":{"a":null,"b":[1,2]},"n":1,"q":"K\\u00f6ln"}', content=[]),
        sent_calls(json.dumps(VALUE), content=None, call={"id": "another", "index": 0}),
    ],
)
async def test_a_call_that_comes_back_changed_still_matches(start, sent_back):
    server, backend, session = await start(RAW_CALL, "Found.")
    message = await chat(server, session, [USER], tools=TOOLS)
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == VALUE
    call_id = sent_back["tool_calls"][0]["id"]
    turned = [
        {
            "function": {"parameters": {"properties": {}, "type": "object"}, "name": "search"},
            "type": "function",
        }
    ]
    await chat(
        server,
        session,
        [USER, sent_back, {"role": "tool", "tool_call_id": call_id, "content": "x"}],
        tools=turned,
    )
    (node,) = await server.nodes(session)
    assert RAW_CALL in node["full_text"]
    assert node["tokens"] == backend.calls[1].prompt_ids + backend.calls[1].output_ids[0]


async def test_volatile_system_text_is_dropped_by_a_rule(start):
    server, _, session = await start("One.", "Two.", model={"drop_system_text": [r"x-billing: \w+\n"]})
    for number, history in enumerate([[USER], [USER, assistant(content="One."), NEXT]]):
        system = {"role": "system", "content": f"x-billing: cch{number}\nBe kind."}
        await chat(server, session, [system, *history])
    (node,) = await server.nodes(session)
    assert "billing" not in node["full_text"]
    assert "Be kind." in node["full_text"]


async def test_a_real_change_branches_at_the_last_common_node(start):
    server, backend, session = await start("One.", "Two.", "Other.")
    await chat(server, session, [USER])
    await chat(server, session, [USER, assistant(content="One."), NEXT])
    await chat(server, session, [USER, assistant(content="One."), {"role": "user", "content": "c"}])
    first, second = await server.nodes(session)
    assert second["metadata"]["parent_id"] == first["metadata"]["parent_id"] is not None
    assert second["metadata"]["branch_reason"] == "messages[2].content differs"
    shared = backend.calls[0].output_ids[0]
    trained = [t for node in (first, second) for t in node["masked_tokens"] if t != -100]
    assert trained == shared + backend.calls[1].output_ids[0] + backend.calls[2].output_ids[0]
    both = [
        [t for t in node["masked_tokens"] if t != -100] for node in await server.nodes(session, mask="all")
    ]
    assert both[1] == shared + backend.calls[2].output_ids[0]


@pytest.mark.parametrize("stop", ["length", "stop string"])
async def test_a_cut_turn_is_closed_once_and_masked(start, rolltap_tokenizer, stop):
    replies = {
        "length": (Reply(text="One and", finish_reason="length"), {}),
        "stop string": (Reply(text="One and END more"), {"stop": ["END"]}),
    }
    reply, options = replies[stop]
    server, backend, session = await start(reply, "Two.")
    message = await chat(server, session, [USER], **options)
    await chat(server, session, [USER, message, NEXT])
    (node,) = await server.nodes(session)
    (end,) = backend.encode("<|im_end|>")
    first = backend.calls[0]
    generated = len([t for t in node["masked_tokens"] if t != -100]) - len(backend.calls[1].output_ids[0])
    at = len(first.prompt_ids) + generated
    assert node["tokens"][at] == end
    assert node["masked_tokens"][at] == -100
    assert node["tokens"].count(end) == 4
    assert "<|im_end|>\n<|im_start|>user\nb<|im_end|>" in node["full_text"]


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_cuts_text_and_tokens(start, openai_client, chunk, stream):
    server, _, session = await start(Reply(text="One two END three", chunk=chunk))
    client = openai_client(server, session)
    ask = {"model": "test-model", "messages": [USER], "stop": ["END", "never"]}
    if stream:
        text = ""
        async for part in await client.chat.completions.create(**ask, stream=True):
            text += part.choices[0].delta.content or ""
            finish = part.choices[0].finish_reason
    else:
        choice = (await client.chat.completions.create(**ask)).choices[0]
        text, finish = choice.message.content, choice.finish_reason
    assert (text, finish) == ("One two ", "stop")
    (node,) = await server.nodes(session)
    assert node["metadata"]["stop_reason"] == "END"
    assert node["full_text"].endswith("One two END")
    assert node["metadata"]["trainable"] is True


async def test_odd_tokenizations_stand(start):
    server, backend, session = await start("placeholder", "Two.")
    letters = [backend.encode(letter)[0] for letter in "weather"]
    odd = [*letters, *backend.encode("<|im_end|>")]
    backend._script = iter([Reply(ids=odd), "Two."])
    message = await chat(server, session, [USER])
    assert message["content"] == "weather"
    assert backend.encode("weather") != letters
    await chat(server, session, [USER, message, NEXT])
    (node,) = await server.nodes(session)
    at = len(backend.calls[0].prompt_ids)
    assert node["tokens"][at : at + len(odd)] == odd


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(text="Hi.", logprobs=None), "one logprob for each token"),
        (Reply(text="Hi.", logprobs=[-0.1]), "one logprob for each token"),
        (Reply(text="Hi.", logprobs=lambda ids: [float("nan")] * len(ids)), "token 0 is nan"),
        (Reply(text="Hi.", echo=[]), "the engine saw a prompt of 0 ids"),
        (Reply(ids=[]), "no token ids"),
    ],
    ids=["no logprobs", "too few logprobs", "nan", "echo", "no ids"],
)
async def test_what_does_not_hold_is_recorded_as_untrainable(start, reply, reason):
    server, _, session = await start(reply)
    await chat(server, session, [USER])
    (node,) = await server.nodes(session)
    assert node["metadata"]["trainable"] is False
    assert reason in node["metadata"]["untrainable_reason"]
    assert set(node["masked_tokens"]) == {-100}
    assert set(node["logprobs"]) == {1.0}
    async with server.http.get("/health") as response:
        record = (await response.json())["record"]
    assert record["untrainable"] == 1
    assert record["drifted"] == (1 if reply.echo is not True else 0)
    async with server.http.get("/ui/api/sessions") as response:
        (row,) = (await response.json())["rows"]
    assert (row["untrainable"], row["drifted"]) == (1, record["drifted"])


async def test_an_echo_that_differs_in_one_id_is_named(start):
    server, backend, session = await start("x")
    backend._script = lambda ids, sampling: Reply(text="Hi.", echo=[*ids[:-1], ids[-1] + 1])
    await chat(server, session, [USER])
    (node,) = await server.nodes(session)
    sent = backend.calls[0].prompt_ids
    assert node["metadata"]["untrainable_reason"] == (
        f"the engine saw another prompt than it was sent: id {sent[-1] + 1} in place of {sent[-1]} at {len(sent) - 1}"
    )


async def test_history_template_branches_and_says_so(start):
    thinking = "<think>\nHm.\n</think>\n\nOne."
    server, backend, session = await start(
        thinking, "Two.", model={"history": "template", "reasoning_parser": "think"}
    )
    message = await chat(server, session, [USER])
    message.pop("reasoning_content", None)
    message.pop("reasoning", None)
    await chat(server, session, [USER, message, NEXT])
    first, second = await server.nodes(session)
    assert "Hm." not in second["full_text"]
    assert second["metadata"]["branch_reason"].startswith('history = "template"')
    for node, call in zip((first, second), backend.calls, strict=True):
        assert node["tokens"] == call.prompt_ids + call.output_ids[0]


async def test_history_template_extends_where_the_template_agrees(start):
    server, backend, session = await start("One.", "Two.", model={"history": "template"})
    message = await chat(server, session, [USER])
    await chat(server, session, [USER, message, NEXT])
    (node,) = await server.nodes(session)
    assert node["tokens"] == backend.calls[1].prompt_ids + backend.calls[1].output_ids[0]


class TestRawCompletions:
    async def complete(self, server, session, prompt, **options):
        status, body = await server.post(f"/{session}/v1/completions", {"prompt": prompt, **options})
        assert status == 200, body
        return body["choices"][0]["text"]

    async def test_text_that_goes_on_extends_the_node(self, start):
        server, backend, session = await start(
            Reply(text=" there was", finish_reason="length"),
            Reply(text=" a tokenizer", finish_reason="length"),
        )
        text = "Once"
        text += await self.complete(server, session, text)
        text += await self.complete(server, session, text + " upon")
        (node,) = await server.nodes(session)
        first, second = backend.calls
        assert second.prompt_ids[: len(first.prompt_ids) + len(first.output_ids[0])] == [
            *first.prompt_ids,
            *first.output_ids[0],
        ]
        assert node["full_text"] == "Once there was upon a tokenizer"

    async def test_the_end_of_a_turn_written_by_the_client_is_not_doubled(self, start):
        server, backend, session = await start("Hi.", "Yes.")
        text = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
        text += await self.complete(server, session, text)
        await self.complete(
            server, session, text + "<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"
        )
        (node,) = await server.nodes(session)
        (end,) = backend.encode("<|im_end|>")
        assert node["tokens"].count(end) == 4

    async def test_going_on_without_the_end_that_the_model_produced_branches(self, start):
        server, backend, session = await start("Hi.", "Yes.")
        text = "Say: " + await self.complete(server, session, "Say: ")
        await self.complete(server, session, text + " And")
        _, second = await server.nodes(session)
        assert "without the end-of-turn token" in second["metadata"]["branch_reason"]
        assert second["tokens"] == backend.calls[1].prompt_ids + backend.calls[1].output_ids[0]

    async def test_ids_that_go_on_extend_the_node(self, start):
        server, backend, session = await start(Reply(text="b", finish_reason="length"), "d")
        ids = backend.encode("a")
        await self.complete(server, session, ids)
        ids = ids + backend.calls[0].output_ids[0] + backend.encode("c")
        await self.complete(server, session, ids)
        (node,) = await server.nodes(session)
        assert backend.calls[1].prompt_ids == ids
        assert node["tokens"] == ids + backend.calls[1].output_ids[0]
