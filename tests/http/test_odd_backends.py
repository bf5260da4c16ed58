"""Backends of plugins that give what they should not: a clear failure, and a record that can always be read."""

import asyncio
from typing import get_args

import pytest

from rolltap import ChatBackend, ChatDelta, FinishReason, TokenBackend, TokenDelta, ToolCall
from rolltap.testing import Reply, ScriptedTokenBackend

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
END = ChatDelta(finish_reason="length")


class Chats(ChatBackend):
    def __init__(self, *deltas):
        self.deltas = deltas

    async def chat(self, request):
        for delta in self.deltas:
            if isinstance(delta, BaseException):
                raise delta
            yield delta


class Tokens(TokenBackend):
    def __init__(self, tokenizer, *deltas):
        self.tokenizer = tokenizer
        self.deltas = deltas

    async def generate(self, request):
        for delta in self.deltas:
            if isinstance(delta, BaseException):
                raise delta
            yield delta


async def ask(server, session="", *, path="chat/completions", stream=False):
    """The status and the text of an answer."""
    url = f"{f'/{session}' if session else ''}/v1/{path}"
    async with server.http.post(url, json=CHAT | {"stream": stream}) as response:
        return response.status, await response.text()


@pytest.mark.parametrize("where", ["session", "no session"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", "messages"])
@pytest.mark.parametrize("first", [[], [ChatDelta(text="Well")]], ids=["at once", "after some text"])
async def test_a_backend_that_cancels_itself_is_a_failure_and_no_empty_answer(
    rolltap_serve, where, stream, path, first
):
    server = await rolltap_serve(Chats(*first, asyncio.CancelledError()))
    session = await server.session() if where == "session" else ""
    status, text = await ask(server, session, path=path, stream=stream)
    assert status == (200 if first and stream else 502)
    assert "its backend gave up" in text
    if session:
        assert await server.nodes(session) == []


async def test_a_token_backend_that_cancels_itself_is_a_failure(rolltap_serve, rolltap_tokenizer):
    backend = Tokens(rolltap_tokenizer, TokenDelta(token_ids=[5], logprobs=[-1.0]), asyncio.CancelledError())
    server = await rolltap_serve(backend)
    session = await server.session()
    assert (await ask(server, session))[0] == 502
    assert await server.nodes(session) == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "odd",
    [
        {"text": "a\ud83d"},
        {"reasoning": "\ude00b"},
        {"tool_calls": [ToolCall(name="f\ud800", arguments='{"a": "\udfff"}')]},
    ],
    ids=lambda odd: next(iter(odd)),
)
async def test_half_a_surrogate_pair_becomes_a_replacement_character(rolltap_serve, stream, odd):
    server = await rolltap_serve(Chats(ChatDelta(**odd), ChatDelta(finish_reason="stop")))
    session = await server.session()
    status, text = await ask(server, session, stream=stream)
    assert status == 200
    assert "�" in text
    assert "error" not in text
    [node] = await server.nodes(session)
    assert "reasoning" in odd or "�" in node["full_text"]


async def test_a_surrogate_pair_in_one_text_is_the_character_it_stands_for(rolltap_serve):
    server = await rolltap_serve(Chats(ChatDelta(text="\ud83d\ude00")))
    assert "😀" in (await ask(server))[1]


@pytest.mark.parametrize("index", [-1, 1, 5])
async def test_a_choice_that_nobody_asked_for_is_refused(rolltap_serve, index):
    server = await rolltap_serve(Chats(ChatDelta(index=index, text="x")))
    session = await server.session()
    status, text = await ask(server, session)
    assert (status, f"choice {index} of 1" in text) == (502, True)
    assert await server.nodes(session) == []


@pytest.mark.parametrize("kind", ["chat", "tokens"])
@pytest.mark.parametrize("reason", ["end_turn", "", "STOP"])
async def test_an_unknown_finish_reason_is_refused_with_the_known_ones(
    rolltap_serve, rolltap_tokenizer, kind, reason
):
    backend = (
        Chats(ChatDelta(text="x", finish_reason=reason))
        if kind == "chat"
        else Tokens(rolltap_tokenizer, TokenDelta(token_ids=[5], logprobs=[-1.0], finish_reason=reason))
    )
    server = await rolltap_serve(backend)
    session = await server.session()
    status, text = await ask(server, session)
    assert status == 502
    assert repr(reason) in text
    assert ", ".join(get_args(FinishReason)) in text
    assert await server.nodes(session) == []


async def test_one_delta_may_be_given_again_and_again(rolltap_serve):
    call = ChatDelta(tool_calls=[ToolCall(name="f", arguments='{"a": 1}')])
    server = await rolltap_serve(Chats(call, END))
    session = await server.session()
    for _ in range(2):
        _, answer = await server.post(f"/{session}/v1/chat/completions", CHAT)
        [choice] = answer["choices"]
        assert choice["finish_reason"] == "length"
        assert [made["function"]["name"] for made in choice["message"]["tool_calls"]] == ["f"]


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf"), float("inf"), 0.5, 1.0])
async def test_a_logprob_that_cannot_be_is_never_trained_on(rolltap_serve, rolltap_tokenizer, logprob):
    reply = Reply(text="Hi", logprobs=lambda ids: [-0.5] * (len(ids) - 1) + [logprob])
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, [reply]))
    session = await server.session()
    assert (await ask(server, session))[0] == 200
    [node] = await server.nodes(session)
    assert node["metadata"]["untrainable_reason"].endswith(f"is {logprob:g}")
    assert set(node["masked_tokens"]) == {-100}


async def test_a_logprob_that_was_rounded_above_zero_is_one(rolltap_serve, rolltap_tokenizer):
    reply = Reply(text="Hi", logprobs=lambda ids: [1e-4] * len(ids))
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, [reply]))
    session = await server.session()
    await ask(server, session)
    [node] = await server.nodes(session)
    assert node["metadata"]["trainable"] is True
