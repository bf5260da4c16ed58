"""`stream_arguments`: a call's arguments reach the client while they are written, and the record is the same."""

import json

import pytest

from rolltap.testing import Reply, ScriptedTokenBackend

TOOLS = [{"type": "function", "function": {"name": "write", "parameters": {"type": "object"}}}]
USER = {"role": "user", "content": "a"}
ARGUMENTS = '{"path": "a.txt", "text": "' + "It is sunny today. " * 20 + '"}'
CALL = f'<tool_call>\n{{"name": "write", "arguments": {ARGUMENTS}}}\n</tool_call>'


@pytest.fixture
async def ask(rolltap_serve, rolltap_tokenizer):
    """Ask once, streamed: the chunks' deltas, the finish reason, the session's server, and its nodes."""

    async def answer(*script, stream_arguments=True, **options):
        backend = ScriptedTokenBackend(rolltap_tokenizer, script)
        server = await rolltap_serve(backend, model={"stream_arguments": stream_arguments})
        session = await server.session()
        body = {"messages": [USER], "tools": TOOLS, "stream": True, **options}
        async with server.http.post(f"{server.url}/{session}/v1/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            lines = [line async for line in response.content]
        frames = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
        choices = [choice for frame in frames for choice in frame["choices"]]
        calls = [call for choice in choices for call in choice["delta"].get("tool_calls") or ()]
        (reason,) = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        return server, session, calls, reason

    return answer


def joined(calls):
    return "".join(call["function"].get("arguments") or "" for call in calls)


async def test_fragments_come_and_the_record_is_the_same(ask):
    server, session, calls, reason = await ask(CALL, "Done.")
    assert len(calls) > 20
    assert calls[0]["function"]["name"] == "write"
    assert calls[0]["id"]
    assert {call["index"] for call in calls} == {0}
    assert not any(call.get("id") or call["function"].get("name") for call in calls[1:])
    assert (joined(calls), reason) == (ARGUMENTS, "tool_calls")
    plain_server, plain_session, whole, _ = await ask(CALL, stream_arguments=False)
    assert [call["function"]["arguments"] for call in whole] == [ARGUMENTS]
    (node,), (plain,) = await server.nodes(session), await plain_server.nodes(plain_session)
    for name in ("tokens", "masked_tokens", "logprobs", "full_text"):
        assert node[name] == plain[name]
    await goes_on(server, session, calls)


async def goes_on(server, session, calls):
    """The call as the client has it is found again: the next turn extends the recorded one."""
    call = {
        "id": calls[0]["id"],
        "type": "function",
        "function": {"name": "write", "arguments": joined(calls)},
    }
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "ok"},
    ]
    status, body = await server.post(
        f"/{session}/v1/chat/completions", {"messages": messages, "tools": TOOLS}
    )
    assert status == 200, body
    (node,) = await server.nodes(session)
    assert node["metadata"]["branch_reason"] is None
    assert node["metadata"]["parent_id"]


async def test_a_call_that_is_cut_stays_as_sent(ask):
    cut = CALL[: len(CALL) // 2]
    server, session, calls, reason = await ask(Reply(text=cut, finish_reason="length"), "Done.")
    assert reason == "length"
    assert ARGUMENTS.startswith(joined(calls))
    assert cut.endswith(joined(calls))
    await goes_on(server, session, calls)


async def test_one_call_at_a_time_leaves_out_all_fragments_of_the_others(ask):
    *_, calls, reason = await ask(f"{CALL}\n{CALL}", parallel_tool_calls=False)
    assert (joined(calls), {call["index"] for call in calls}, reason) == (ARGUMENTS, {0}, "tool_calls")
    *_, calls, _ = await ask(f"{CALL}\n{CALL}")
    assert joined([call for call in calls if call["index"] == 1]) == ARGUMENTS
