"""Whole rollouts over HTTP by the real openai client: what the record holds is what the backend was sent and gave."""

import json

import pytest

from rolltap.testing import Reply, ScriptedTokenBackend, assert_exact

TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": name, "parameters": {"type": "object", "properties": {}}},
    }
    for name in ("get_weather", "get_forecast")
]


def calls(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture
def scripted(rolltap_tokenizer):
    return lambda *script: ScriptedTokenBackend(rolltap_tokenizer, script)


async def converse(server, client, backend, session, turns, *, tools=None, model="test-model", stream=False):
    """Play a conversation: a str is a user's message, a list is the results of the calls that came before."""
    messages = []
    for number, turn in enumerate(turns, 1):
        if isinstance(turn, str):
            messages.append({"role": "user", "content": turn})
        else:
            for call, result in zip(messages[-1]["tool_calls"], turn, strict=True):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        options = {"tools": tools} if tools else {}
        if stream:
            async with client.chat.completions.stream(model=model, messages=messages, **options) as events:
                async for _ in events:
                    pass
                message = (await events.get_final_completion()).choices[0].message
        else:
            message = (
                (await client.chat.completions.create(model=model, messages=messages, **options))
                .choices[0]
                .message
            )
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        nodes = await server.nodes(session)
        assert len(nodes) == 1, f"after turn {number}"
        assert_exact(nodes[0], backend.calls[-1], *backend.calls[:-1])
    return messages


@pytest.mark.parametrize("stream", [False, True])
async def test_a_long_conversation_with_calls_is_one_node(rolltap_serve, scripted, openai_client, stream):
    backend = scripted(
        calls("get_weather", city="SF"),
        "The weather in SF is 72°F and sunny! Want the forecast too?",
        calls("get_forecast", city="SF"),
        "Rain is expected tomorrow.",
        "Let me look. " + calls("get_weather", city="NYC") + "\n" + calls("get_forecast", city="NYC"),
        "55°F and cloudy. Quite different from SF!",
    )
    server = await rolltap_serve(backend)
    session = await server.session()
    messages = await converse(
        server,
        openai_client(server, session),
        backend,
        session,
        [
            "What's the weather in SF?",
            ["72°F and sunny"],
            "Yes please",
            ["Rain"],
            "And NYC?",
            ["55°F", "Cloudy"],
        ],
        tools=TOOLS,
        stream=stream,
    )
    assert messages[1]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert json.loads(messages[1]["tool_calls"][0]["function"]["arguments"]) == {"city": "SF"}
    assert messages[9]["content"] == "Let me look."
    assert len(messages[9]["tool_calls"]) == 2
    ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("stream", [False, True])
async def test_five_plain_turns_are_one_node(rolltap_serve, scripted, openai_client, stream):
    backend = scripted(*(f"Answer to turn {turn}" for turn in range(5)))
    server = await rolltap_serve(backend)
    session = await server.session()
    turns = [f"Question of turn {turn}" for turn in range(5)]
    await converse(server, openai_client(server, session), backend, session, turns, stream=stream)
    (node,) = await server.nodes(session)
    for turn in range(5):
        assert f"Question of turn {turn}" in node["full_text"]
        assert f"Answer to turn {turn}<|im_end|>" in node["full_text"]
    assert node["full_text"].count("<|im_end|>") == 10


async def test_streamed_and_plain_record_the_same(rolltap_serve, scripted, openai_client):
    records = []
    for stream in (False, True):
        backend = scripted("One.", calls("get_weather", city="Köln"), "Done 🎉.")
        server = await rolltap_serve(backend)
        session = await server.session()
        await converse(
            server,
            openai_client(server, session),
            backend,
            session,
            ["a", "b", ["c"]],
            tools=TOOLS,
            stream=stream,
        )
        (node,) = await server.nodes(session)
        records.append({name: node[name] for name in ("full_text", "tokens", "masked_tokens", "logprobs")})
    assert records[0] == records[1]


async def test_a_plain_answer(rolltap_serve, scripted, openai_client):
    backend = scripted("Hi there!")
    server = await rolltap_serve(backend)
    client = openai_client(server, await server.session())
    answer = await client.chat.completions.create(
        model="test-model",
        messages=[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}],
        max_tokens=100,
        temperature=0.5,
    )
    (choice,) = answer.choices
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "test-model"
    assert (choice.message.role, choice.message.content, choice.finish_reason) == (
        "assistant",
        "Hi there!",
        "stop",
    )
    assert choice.message.tool_calls is None
    call = backend.calls[0]
    assert (call.sampling.max_tokens, call.sampling.temperature) == (100, 0.5)
    assert answer.usage.prompt_tokens == len(call.prompt_ids)
    assert answer.usage.completion_tokens == len(call.output_ids[0])


async def test_n_choices_are_siblings_that_share_their_prompt(rolltap_serve, scripted, openai_client):
    backend = scripted(["One", "Two", "Three"], "Four")
    server = await rolltap_serve(backend)
    session = await server.session()
    client = openai_client(server, session)
    messages = [{"role": "user", "content": "Pick a number"}]
    answer = await client.chat.completions.create(model="test-model", messages=messages, n=3)
    assert [choice.message.content for choice in answer.choices] == ["One", "Two", "Three"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    nodes = await server.nodes(session)
    for choice, node in enumerate(nodes):
        assert_exact(node, backend.calls[0], choice=choice)
    messages += [{"role": "assistant", "content": "Two"}, {"role": "user", "content": "Another"}]
    await client.chat.completions.create(model="test-model", messages=messages)
    nodes = await server.nodes(session)
    assert [node["metadata"]["choice"] for node in nodes if "choice" in node["metadata"]] == [0, 2]
    assert nodes[-1]["tokens"][: len(nodes[0]["tokens"])] != nodes[0]["tokens"]


async def test_a_call_goes_out_as_a_call_and_stays_text_in_the_record(rolltap_serve, scripted, openai_client):
    raw = calls("get_weather", city="SF")
    server = await rolltap_serve(scripted(raw))
    session = await server.session()
    answer = await openai_client(server, session).chat.completions.create(
        model="test-model", messages=[{"role": "user", "content": "Weather?"}], tools=TOOLS
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "SF"})
    (node,) = await server.nodes(session)
    assert raw in node["full_text"]


async def test_tool_choice_none_leaves_the_text_alone(rolltap_serve, scripted, openai_client):
    raw = calls("get_weather", city="SF")
    server = await rolltap_serve(scripted(raw))
    answer = await openai_client(server, await server.session()).chat.completions.create(
        model="test-model",
        messages=[{"role": "user", "content": "Weather?"}],
        tools=TOOLS,
        tool_choice="none",
    )
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.tool_calls, choice.message.content) == ("stop", None, raw)


async def test_length_wins_over_calls(rolltap_serve, scripted, openai_client):
    raw = calls("get_weather", city="SF")
    server = await rolltap_serve(scripted(Reply(text=raw + "\n<tool_call>\n{", finish_reason="length")))
    answer = await openai_client(server, await server.session()).chat.completions.create(
        model="test-model", messages=[{"role": "user", "content": "Weather?"}], tools=TOOLS
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "length"
    assert len(choice.message.tool_calls) == 1


async def test_render_shows_what_the_next_call_sends(rolltap_serve, scripted):
    backend = scripted("Hi.", "Again.")
    server = await rolltap_serve(backend)
    session = await server.session()
    body = {"messages": [{"role": "user", "content": "Hello"}], "tools": TOOLS}
    for _ in range(2):
        status, shown = await server.post(f"/{session}/v1/chat/completions/render", body)
        assert status == 200
        nodes = await server.nodes(session)
        await server.post(f"/{session}/v1/chat/completions", body)
        assert len(nodes) == len(backend.calls) - 1
        assert shown["token_ids"] == backend.calls[-1].prompt_ids
        assert shown["num_tokens"] == len(shown["token_ids"])
        assert "Hello" in shown["prompt_text"]
        assert "get_forecast" in shown["prompt_text"]
        body["messages"] += [{"role": "assistant", "content": "Hi."}, {"role": "user", "content": "More"}]
    assert shown["parent_id"] == nodes[0]["metadata"]["node_id"]


async def test_track_tree_shows_each_completion(rolltap_serve, scripted, openai_client):
    backend = scripted("One.", "Two.")
    server = await rolltap_serve(backend)
    session = await server.session(track_tree=True)
    client = openai_client(server, session)
    messages = [{"role": "user", "content": "a"}]
    await client.chat.completions.create(model="test-model", messages=messages)
    messages += [{"role": "assistant", "content": "One."}, {"role": "user", "content": "b"}]
    await client.chat.completions.create(model="test-model", messages=messages)
    first, second = await server.nodes(session)
    assert second["metadata"]["parent_id"] == first["metadata"]["node_id"]
    for node, call in zip((first, second), backend.calls, strict=True):
        assert_exact(node, call)
    (_, second) = await server.nodes(session, mask="all")
    assert [t for t in second["masked_tokens"] if t != -100] == [
        *backend.calls[0].output_ids[0],
        *backend.calls[1].output_ids[0],
    ]


async def test_a_sessions_sampling_wins(rolltap_serve, scripted, openai_client):
    backend = scripted("Hi.")
    server = await rolltap_serve(backend)
    session = await server.session(sampling={"temperature": 1.0, "top_k": 5})
    await openai_client(server, session).chat.completions.create(
        model="test-model", messages=[{"role": "user", "content": "a"}], temperature=0.1, top_p=0.9
    )
    sampling = backend.calls[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (1.0, 5, 0.9)
    (node,) = await server.nodes(session)
    assert node["metadata"]["sampling"] == {"temperature": 1.0, "top_k": 5, "top_p": 0.9}


async def test_the_metadata_tells_where_a_node_comes_from(rolltap_serve, scripted, openai_client):
    reply = Reply(text="Hi.", extras={"weight_versions": [{"version": "7", "tokens": 2}]})
    server = await rolltap_serve(scripted(reply))
    session = await server.session(metadata={"task": 3})
    await openai_client(server, session).chat.completions.create(
        model="test-model", messages=[{"role": "user", "content": "a"}]
    )
    metadata = (await server.nodes(session))[0]["metadata"]
    assert metadata["trainable"] is True
    assert metadata["finish_reason"] == "stop"
    assert metadata["parent_id"] is None
    assert metadata["branch_reason"] is None
    assert metadata["delivery"] == "delivered"
    assert (metadata["backend"], metadata["model"]) == ("given-0", "test-model")
    assert metadata["logprobs_mode"] == "raw_logprobs"
    assert metadata["weight_versions"] == [{"version": "7", "tokens": 2}]
    assert metadata["created_at"] > 0


async def test_tokens_are_forwarded_while_the_engine_generates(rolltap_serve, scripted, openai_client):
    backend = scripted(Reply(text="One two three four five six", delay_s=0.02))
    server = await rolltap_serve(backend)
    client = openai_client(server, await server.session())
    stream = await client.chat.completions.create(
        model="test-model", messages=[{"role": "user", "content": "a"}], stream=True
    )
    seen = [len(backend.calls[0].output_ids[0]) async for chunk in stream if chunk.choices[0].delta.content]
    assert len(seen) > 5
    assert seen[0] <= 3
    assert seen == sorted(seen)


async def test_logprobs_of_tokens_for_the_client(rolltap_serve, scripted, openai_client):
    backend = scripted("Köln 🙂")
    server = await rolltap_serve(backend)
    session = await server.session()
    answer = await openai_client(server, session).chat.completions.create(
        model="test-model", messages=[{"role": "user", "content": "a"}], logprobs=True
    )
    content = answer.choices[0].logprobs.content
    output = backend.calls[0].output_ids[0]
    assert len(content) == len(output)
    (node,) = await server.nodes(session)
    assert [item.logprob for item in content] == node["logprobs"][-len(output) :]
    assert b"".join(bytes(item.bytes) for item in content).decode() == "Köln 🙂<|im_end|>"
