"""Completions of a running server as evaluation harnesses and trainers use them, by the real openai client."""

from typing import Any

import openai
import pytest

from rolltap.testing import MODEL, Reply, ScriptedChatBackend, ScriptedTokenBackend, assert_exact


@pytest.fixture
async def start(rolltap_serve, rolltap_tokenizer, openai_client):
    async def begin(script, **settings):
        backend = ScriptedTokenBackend(rolltap_tokenizer, script)
        server = await rolltap_serve(backend)
        session = await server.session(**settings)
        return server, backend, session, openai_client(server, session)

    return begin


def scored(prompt_ids, sampling):
    """A reply of an engine that also scores the prompt: the token itself, and a likelier one beside every second."""
    assert sampling.extra["prompt_logprobs"] >= 0
    given: list[Any] = [None]
    for at, token in enumerate(prompt_ids[1:], 1):
        given.append({token: -0.5 * at} | ({token + 1: -0.25} if at % 2 else {}))
    return Reply(text=" upon", finish_reason="length", extras={"prompt_logprobs": given})


async def together(client, streamed, **fields) -> Any:
    """The texts, the reasons and the ids of all choices, by their numbers."""
    reply = await client.completions.create(model=MODEL, stream=streamed, **fields)
    if not streamed:
        return {choice.index: choice.text for choice in reply.choices}, reply.usage
    texts: dict[int, str] = {}
    usage = None
    async for chunk in reply:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    return texts, usage


# Several prompts


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("echo", [False, True])
async def test_each_of_several_prompts_is_a_call_of_its_own(start, streamed, echo):
    answers = {"one": " first", "two words": " second"}

    def script(prompt_ids, sampling):
        return answers[backend._tokenizer.decode(prompt_ids)]

    server, backend, session, client = await start(script)
    fields: Any = {"prompt": list(answers), "n": 2, "echo": echo, "max_tokens": 9}
    if streamed:
        fields["stream_options"] = {"include_usage": True}
    texts, usage = await together(client, streamed, **fields)
    expected = [(prompt if echo else "") + answer for prompt, answer in answers.items() for _ in range(2)]
    assert texts == dict(enumerate(expected))
    assert usage.prompt_tokens == sum(len(call.prompt_ids) for call in backend.calls)
    assert usage.completion_tokens == sum(len(ids) for call in backend.calls for ids in call.output_ids)
    nodes = await server.nodes(session)
    assert len(nodes) == 4
    for node in nodes:
        (call,) = [c for c in backend.calls if node["tokens"][: len(c.prompt_ids)] == c.prompt_ids]
        assert node["metadata"]["trainable"]
        assert_exact(node, call, choice=node["metadata"]["choice"])


async def test_the_same_prompt_twice_is_two_samples(start):
    server, backend, session, client = await start([" a", " b"])
    texts, _ = await together(client, False, prompt=[[5, 6], [5, 6]])
    assert sorted(texts.values()) == [" a", " b"]
    assert [call.prompt_ids for call in backend.calls] == [[5, 6], [5, 6]]
    assert len(await server.nodes(session)) == 2


async def test_a_sessions_own_number_of_choices_holds_for_each_prompt(start):
    _, _, _, client = await start(lambda ids, sampling: " x", sampling={"n": 2})
    texts, _ = await together(client, False, prompt=["one", "two"], echo=True)
    assert texts == {0: "one x", 1: "one x", 2: "two x", 3: "two x"}


@pytest.mark.parametrize("streamed", [False, True])
async def test_one_failure_is_the_requests_and_the_session_can_be_sealed(start, streamed):
    def script(prompt_ids, sampling):
        return Reply(text=" a", error=ConnectionResetError("engine gone")) if len(prompt_ids) > 1 else " b"

    server, _, session, client = await start(script)
    with pytest.raises(openai.APIError, match="engine gone"):
        await together(client, streamed, prompt=[[5], [5, 6]])
    async with server.http.get(f"/{session}") as response:
        assert (await response.json())["in_flight"] == 0


async def test_prompts_past_a_limit_begin_nothing(start):
    server, backend, session, client = await start(lambda ids, sampling: " x", limits={"turns": 2})
    with pytest.raises(openai.BadRequestError, match=r"limits\.turns"):
        await together(client, False, prompt=["a", "b", "c"])
    assert (backend.calls, await server.nodes(session)) == ([], [])
    texts, _ = await together(client, False, prompt=["a", "b"])
    assert len(texts) == 2


# Logprobs of the answer and of the prompt


async def test_no_alternatives_are_not_no_logprobs(start):
    _, backend, _, client = await start([" upon a"])
    (choice,) = (await client.completions.create(model=MODEL, prompt="once", logprobs=0)).choices
    ids = backend.calls[0].output_ids[0]
    assert len(choice.logprobs.token_logprobs) == len(ids)
    assert choice.logprobs.token_logprobs == backend.calls[0].output_logprobs[0]


@pytest.mark.parametrize("prompt", ["once upon a time", [11, 12, 13, 14]])
async def test_echo_with_logprobs_scores_the_prompt(start, prompt):
    _, backend, _, client = await start(scored)
    reply = await client.completions.create(model=MODEL, prompt=prompt, echo=True, logprobs=1, max_tokens=1)
    (choice,) = reply.choices
    (call,) = backend.calls
    assert call.sampling.extra == {"prompt_logprobs": 1}
    decode = backend._tokenizer.decode
    ids = call.prompt_ids + call.output_ids[0]
    count = len(call.prompt_ids)
    assert choice.logprobs.tokens == [decode([token]) for token in ids]
    assert choice.text.endswith(" upon")
    if isinstance(prompt, str):
        assert choice.text == f"{prompt} upon"
    assert choice.logprobs.token_logprobs[:count] == [None, *(-0.5 * at for at in range(1, count))]
    assert choice.logprobs.token_logprobs[count:] == call.output_logprobs[0]
    assert choice.logprobs.top_logprobs[0] is None
    # As harnesses read it: was the token the likeliest?
    greedy = [
        max(top.values()) == own
        for top, own in zip(
            choice.logprobs.top_logprobs[1:count], choice.logprobs.token_logprobs[1:count], strict=True
        )
    ]
    assert greedy == [at % 2 == 0 for at in range(1, count)]
    assert choice.logprobs.text_offset[0] == 0
    assert choice.logprobs.text_offset[-1] < len("".join(choice.logprobs.tokens))


async def test_several_prompts_are_scored_each_by_itself(start):
    _, _, _, client = await start(scored)
    prompts = [[11, 12, 13], [21, 22]]
    reply = await client.completions.create(model=MODEL, prompt=prompts, echo=True, logprobs=0, max_tokens=1)
    lengths = [len([x for x in choice.logprobs.token_logprobs if x is None]) for choice in reply.choices]
    assert lengths == [1, 1]
    assert all(
        len(choice.logprobs.tokens) > len(ids) for choice, ids in zip(reply.choices, prompts, strict=True)
    )


async def test_prompt_logprobs_as_vllm_tells_them(start):
    _, backend, _, client = await start(scored)
    reply = await client.completions.create(model=MODEL, prompt=[11, 12], extra_body={"prompt_logprobs": 2})
    first, second = reply.choices[0].prompt_logprobs
    assert first is None
    assert {key: (value["logprob"], value["rank"]) for key, value in second.items()} == {
        "12": (-0.5, 2),
        "13": (-0.25, 1),
    }
    hi: Any = [{"role": "user", "content": "hi"}]
    chat = await client.chat.completions.create(model=MODEL, messages=hi, extra_body={"prompt_logprobs": 1})
    assert len(chat.prompt_logprobs) == len(backend.calls[1].prompt_ids)


async def test_a_backend_that_scores_no_prompts_says_so(rolltap_serve, rolltap_tokenizer, openai_client):
    class Plain(ScriptedTokenBackend):
        parameters = frozenset({"max_tokens", "top_logprobs"})

    server = await rolltap_serve(Plain(rolltap_tokenizer, []))
    with pytest.raises(openai.BadRequestError, match="prompt_logprobs"):
        await openai_client(server).completions.create(model=MODEL, prompt="a", echo=True, logprobs=1)


# Token ids


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("dialect", ["completions", "chat"])
async def test_ids_are_returned_where_they_are_asked_for(start, dialect, streamed):
    _, backend, _, client = await start([Reply(text=" upon a time", chunk=2)])
    extra: Any = {"return_token_ids": True}
    if dialect == "completions":
        reply = await client.completions.create(model=MODEL, prompt="once", stream=streamed, extra_body=extra)
    else:
        hi: Any = [{"role": "user", "content": "hi"}]
        reply = await client.chat.completions.create(
            model=MODEL, messages=hi, stream=streamed, extra_body=extra
        )
    parts = [part async for part in reply] if streamed else [reply]
    ids = [token for part in parts for token in getattr(part.choices[0], "token_ids", None) or ()]
    holders = [part.choices[0] if dialect == "completions" else part for part in parts]
    prompts = [found for holder in holders if (found := getattr(holder, "prompt_token_ids", None))]
    (call,) = backend.calls
    assert (ids, prompts) == (call.output_ids[0], [call.prompt_ids])


async def test_ids_are_not_told_to_who_does_not_ask(start):
    _, _, _, client = await start([" upon"])
    reply = await client.completions.create(model=MODEL, prompt="once")
    assert not {"token_ids", "prompt_token_ids"} & reply.choices[0].model_dump().keys()


async def test_a_backend_of_text_has_no_ids_to_return(rolltap_serve, openai_client):
    client = openai_client(await rolltap_serve(ScriptedChatBackend(["hi"])))
    hi: Any = [{"role": "user", "content": "hi"}]
    with pytest.raises(openai.BadRequestError, match="no ids"):
        await client.chat.completions.create(model=MODEL, messages=hi, extra_body={"return_token_ids": True})


# Usage


@pytest.mark.parametrize("dialect", ["completions", "chat"])
async def test_usage_so_far_in_every_chunk(start, dialect):
    _, backend, _, client = await start([" upon a time"])
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    if dialect == "completions":
        stream = await client.completions.create(
            model=MODEL, prompt="once", stream=True, stream_options=options
        )
    else:
        hi: Any = [{"role": "user", "content": "hi"}]
        stream = await client.chat.completions.create(
            model=MODEL, messages=hi, stream=True, stream_options=options
        )
    counts = [chunk.usage.completion_tokens async for chunk in stream if chunk.usage]
    (call,) = backend.calls
    assert len(counts) > 3
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] == len(call.output_ids[0])


@pytest.mark.parametrize("streamed", [False, True])
async def test_thinking_is_counted(rolltap_serve, rolltap_tokenizer, openai_client, streamed):
    backend = ScriptedTokenBackend(rolltap_tokenizer, ["<think>one two three</think>four"])
    server = await rolltap_serve(backend, model={"reasoning_parser": "think"})
    fields: Any = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    if streamed:
        fields["stream_options"] = {"include_usage": True}
        async with openai_client(server).chat.completions.stream(**fields) as stream:
            usage = (await stream.get_final_completion()).usage
    else:
        usage = (await openai_client(server).chat.completions.create(**fields)).usage
    assert usage.completion_tokens_details.reasoning_tokens == len(backend.encode("one two three"))
