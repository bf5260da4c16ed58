"""Every dialect on a real server, asked by the real SDKs: a rollout with a tool call is one exact trainable node."""

import json
from contextlib import AsyncExitStack
from typing import Any

import anthropic
import openai
import pytest

from rolltap.testing import MODEL, Reply, ScriptedTokenBackend, assert_exact

CALL = '<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"cmd": {"type": "string"}}}


@pytest.fixture
async def rollout(rolltap_serve, rolltap_tokenizer):
    """Runs a client's two calls in a session, and checks what was recorded."""
    async with AsyncExitStack() as stack:

        async def run(client_type, path, two_calls):
            backend = ScriptedTokenBackend(rolltap_tokenizer, [CALL, "Two files."])
            server = await rolltap_serve(backend)
            session = await server.session()
            client = await stack.enter_async_context(
                client_type(base_url=f"{server.url}/{session}{path}", api_key="x", max_retries=0)
            )
            answer = await two_calls(client)
            (node,) = await server.nodes(session)
            assert node["metadata"]["trainable"]
            assert_exact(node, backend.calls[1], backend.calls[0])
            return answer

        yield run


@pytest.mark.parametrize("streamed", [False, True])
async def test_chat(rollout, streamed):
    tools: Any = [{"type": "function", "function": {"name": "run", "parameters": SCHEMA}}]

    async def ask(client, messages):
        asked = {"model": MODEL, "messages": messages, "tools": tools}
        if not streamed:
            return (await client.chat.completions.create(**asked)).choices[0]
        async with client.chat.completions.stream(**asked) as stream:
            return (await stream.get_final_completion()).choices[0]

    async def two_calls(client):
        messages: list[Any] = [{"role": "user", "content": "what is there?"}]
        first = await ask(client, messages)
        (call,) = first.message.tool_calls
        assert (first.finish_reason, call.function.name, json.loads(call.function.arguments)) == (
            "tool_calls",
            "run",
            {"cmd": "ls"},
        )
        messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "a b"}]
        return (await ask(client, messages)).message.content

    assert await rollout(openai.AsyncOpenAI, "/v1", two_calls) == "Two files."


@pytest.mark.parametrize("streamed", [False, True])
async def test_messages(rollout, streamed):
    async def ask(client, messages, number):
        billing = f"x-anthropic-billing-header: cch={number};"
        asked: Any = {
            "model": MODEL,
            "max_tokens": 100,
            "messages": messages,
            "system": [{"type": "text", "text": billing}, {"type": "text", "text": "Be brief."}],
            "tools": [{"name": "run", "input_schema": SCHEMA}],
        }
        if not streamed:
            return await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            return await stream.get_final_message()

    async def two_calls(client):
        text = {"type": "text", "text": "what is there?"}
        messages: list[Any] = [
            {"role": "user", "content": [{**text, "cache_control": {"type": "ephemeral"}}]}
        ]
        first = await ask(client, messages, 1)
        (call,) = first.content
        assert (first.stop_reason, call.name, call.input) == ("tool_use", "run", {"cmd": "ls"})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "a b", "is_error": False}
        messages = [
            {"role": "user", "content": [text]},
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ]
        last = await ask(client, messages, 2)
        assert (last.stop_reason, last.usage.output_tokens > 0) == ("end_turn", True)
        return last.content[0].text

    assert await rollout(anthropic.AsyncAnthropic, "", two_calls) == "Two files."


@pytest.mark.parametrize("streamed", [False, True])
async def test_responses(rollout, streamed):
    tools: Any = [{"type": "function", "name": "run", "parameters": SCHEMA, "strict": False}]

    async def ask(client, items):
        asked: Any = {
            "model": MODEL,
            "input": items,
            "tools": tools,
            "instructions": "Be brief.",
            "store": False,
        }
        if not streamed:
            return await client.responses.create(**asked)
        async with client.responses.stream(**asked) as stream:
            return await stream.get_final_response()

    async def two_calls(client):
        items: list[Any] = [{"role": "user", "content": "what is there?"}]
        first = await ask(client, items)
        (call,) = first.output
        assert (first.status, call.name, json.loads(call.arguments)) == ("completed", "run", {"cmd": "ls"})
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "a b"}
        return (await ask(client, [*items, *first.output, result])).output_text

    assert await rollout(openai.AsyncOpenAI, "/v1", two_calls) == "Two files."


@pytest.mark.parametrize("streamed", [False, True])
async def test_completions(rolltap_serve, rolltap_tokenizer, streamed):
    backend = ScriptedTokenBackend(rolltap_tokenizer, [" upon a time"])
    server = await rolltap_serve(backend)
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        asked: Any = {"model": MODEL, "prompt": "once", "echo": True, "stream": streamed}
        reply: Any = await client.completions.create(**asked)
        texts = [chunk.choices[0].text async for chunk in reply] if streamed else [reply.choices[0].text]
    assert "".join(texts) == "once upon a time"
    assert backend.calls[0].sampling.max_tokens == 16


CASES = [
    (openai.AsyncOpenAI, "/v1", lambda c: c.chat.completions.create(model=MODEL, messages=[])),
    (openai.AsyncOpenAI, "/v1", lambda c: c.completions.create(model=MODEL, prompt="")),
    (openai.AsyncOpenAI, "/v1", lambda c: c.responses.create(model=MODEL, input=[])),
    (anthropic.AsyncAnthropic, "", lambda c: c.messages.create(model=MODEL, messages=[], max_tokens=1)),
]


@pytest.mark.parametrize(("client_type", "path", "ask"), CASES)
async def test_bad_request_is_answered_in_the_callers_words(
    rolltap_serve, rolltap_tokenizer, client_type, path, ask
):
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer))
    sdk = openai if client_type is openai.AsyncOpenAI else anthropic
    async with client_type(base_url=f"{server.url}{path}", api_key="x", max_retries=0) as client:
        with pytest.raises(sdk.BadRequestError) as caught:
            await ask(client)
    assert caught.value.request_id.startswith("req_")


async def test_failure_inside_a_stream_reaches_each_sdk(rolltap_serve, rolltap_tokenizer):
    def broken(prompt_ids, sampling):
        return Reply(text="so far", error=ConnectionResetError("engine gone"))

    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, broken))
    hi: list[Any] = [{"role": "user", "content": "hi"}]
    async with (
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as ours,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="x", max_retries=0) as theirs,
    ):
        chat = await ours.chat.completions.create(model=MODEL, messages=hi, stream=True)
        with pytest.raises(openai.APIError, match="engine gone"):
            [chunk async for chunk in chat]
        events = [event async for event in await ours.responses.create(model=MODEL, input="hi", stream=True)]
        assert events[-1].type == "response.failed"
        message = await theirs.messages.create(model=MODEL, messages=hi, max_tokens=9, stream=True)
        with pytest.raises(anthropic.APIStatusError, match="engine gone"):
            [event async for event in message]
