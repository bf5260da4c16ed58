"""Long conversations in a session: each turn is decoded, answered and recorded as if it had come alone."""

import pytest

from rolltap.testing import ScriptedTokenBackend

TURNS = 6


def openai_turn(messages, marked):
    return "chat/completions", {"messages": messages}


def anthropic_turn(messages, marked):
    """As Claude Code sends it: the last message bears a mark that it loses with the next turn."""
    blocks = [
        {"role": one["role"], "content": [{"type": "text", "text": one["content"]}]} for one in messages
    ]
    if marked:
        blocks[-1]["content"][0]["cache_control"] = {"type": "ephemeral"}
    return "messages", {"messages": blocks, "max_tokens": 50, "system": "Be brief."}


def said(reply) -> str:
    return reply["content"][0]["text"] if "content" in reply else reply["choices"][0]["message"]["content"]


@pytest.mark.parametrize("turn", [openai_turn, anthropic_turn])
@pytest.mark.parametrize("marked", [False, True])
async def test_prompts_are_those_of_a_session_that_knows_nothing(
    rolltap_serve, rolltap_tokenizer, turn, marked
):
    backend = ScriptedTokenBackend(str(rolltap_tokenizer), lambda ids, sampling: f"It is {len(ids)}.")
    server = await rolltap_serve(backend)
    session, messages = await server.session(), []
    for number in range(TURNS):
        messages.append({"role": "user", "content": f"Question {number}?"})
        path, body = turn(messages, marked)
        status, reply = await server.post(f"/{session}/v1/{path}", {"model": "test-model", **body})
        assert status == 200, reply
        messages.append({"role": "assistant", "content": said(reply)})
    nodes = await server.nodes(session)
    assert len(nodes) == 1
    assert nodes[0]["tokens"][: len(backend.calls[-1].prompt_ids)] == backend.calls[-1].prompt_ids
    text = nodes[0]["full_text"]
    assert [text.count(f"Question {number}?") for number in range(TURNS)] == [1] * TURNS


async def test_a_wrong_message_is_named_by_its_place_in_the_whole(rolltap_serve, rolltap_tokenizer):
    server = await rolltap_serve(ScriptedTokenBackend(str(rolltap_tokenizer), ["Fine."]))
    session = await server.session()
    messages = [{"role": "user", "content": "How are you?"}]
    path = f"/{session}/v1/chat/completions"
    await server.post(path, {"messages": messages})
    messages += [{"role": "assistant", "content": "Fine."}, {"role": "user", "content": 7}]
    status, reply = await server.post(path, {"messages": messages})
    assert status == 400
    assert reply["error"]["param"] == "messages[2].content"
