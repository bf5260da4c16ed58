"""Anthropic's count_tokens, by the real client: exactly what the next call would send, and nothing is recorded."""

from contextlib import AsyncExitStack
from typing import Any

import anthropic
import pytest

from rolltap.testing import MODEL, Reply, ScriptedChatBackend, ScriptedTokenBackend

TOOLS: Any = [{"name": "run", "input_schema": {"type": "object"}}]
ASKED: Any = {"model": MODEL, "system": "Be brief.", "tools": TOOLS}


@pytest.fixture
async def anthropic_client():
    async with AsyncExitStack() as stack:

        async def make(server, session=""):
            base = f"{server.url}/{session}".rstrip("/")
            client = anthropic.AsyncAnthropic(base_url=base, api_key="x", max_retries=0)
            return await stack.enter_async_context(client)

        yield make


@pytest.mark.parametrize("in_session", [False, True])
async def test_the_count_is_what_the_next_call_is_sent(
    rolltap_serve, rolltap_tokenizer, anthropic_client, in_session
):
    backend = ScriptedTokenBackend(rolltap_tokenizer, ["One.", "Two."])
    server = await rolltap_serve(backend)
    session = await server.session() if in_session else ""
    client = await anthropic_client(server, session)
    messages: Any = [{"role": "user", "content": "a"}]
    for turn in range(2):
        counted = await client.messages.count_tokens(messages=messages, **ASKED)
        assert len(backend.calls) == turn
        answer = await client.messages.create(messages=messages, max_tokens=9, **ASKED)
        assert counted.input_tokens == len(backend.calls[turn].prompt_ids) == answer.usage.input_tokens
        messages = [*messages, {"role": "assistant", "content": answer.content}, *messages]
    if in_session:
        assert len(await server.nodes(session)) == 1


async def test_counting_in_a_session_counts_the_recorded_ids(
    rolltap_serve, rolltap_tokenizer, anthropic_client
):
    """The same text may have been generated in other tokens than the tokenizer would make of it."""

    def spelled(prompt_ids, sampling):
        return Reply(ids=[*(token for letter in "hello" for token in backend.encode(letter)), end])

    backend = ScriptedTokenBackend(rolltap_tokenizer, spelled)
    server = await rolltap_serve(backend)
    (end,) = backend.encode("<|im_end|>")
    whole = backend.encode("hello")
    assert len(whole) < len("hello")
    session = await server.session()
    inside, outside = await anthropic_client(server, session), await anthropic_client(server)
    messages: Any = [{"role": "user", "content": "a"}]
    answer = await inside.messages.create(messages=messages, max_tokens=9, **ASKED)
    messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "b"}]
    recorded = await inside.messages.count_tokens(messages=messages, **ASKED)
    tokenized = await outside.messages.count_tokens(messages=messages, **ASKED)
    assert recorded.input_tokens == tokenized.input_tokens + len("hello") - len(whole)


async def test_a_model_without_a_tokenizer_says_so_in_anthropics_words(rolltap_serve, anthropic_client):
    client = await anthropic_client(await rolltap_serve(ScriptedChatBackend()))
    with pytest.raises(anthropic.BadRequestError) as caught:
        await client.messages.count_tokens(messages=[{"role": "user", "content": "a"}], model=MODEL)
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert MODEL in body["error"]["message"]
    assert "has no tokenizer" in body["error"]["message"]
    assert caught.value.request_id.startswith("req_")


async def test_a_chat_model_with_a_tokenizer_counts(rolltap_serve, rolltap_tokenizer, anthropic_client):
    server = await rolltap_serve(ScriptedChatBackend(), model={"tokenizer": rolltap_tokenizer})
    client = await anthropic_client(server)
    counted = await client.messages.count_tokens(messages=[{"role": "user", "content": "a"}], model=MODEL)
    assert counted.input_tokens > 1
