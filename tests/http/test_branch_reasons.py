"""Why a call did not extend what is recorded, in the words that a trainer reads."""

import pytest

from rolltap.testing import ScriptedTokenBackend

USER = {"role": "user", "content": "one"}
OTHER = {"role": "user", "content": "two"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.fixture
async def ask(rolltap_serve, rolltap_tokenizer):
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, lambda ids, sampling: "Hi."))
    session = await server.session(track_tree=True)

    async def reasons(*requests):
        """The reason of each request's node."""
        for path, body in requests:
            status, answer = await server.post(f"/{session}/v1/{path}", body)
            assert status == 200, answer
        return [node["metadata"]["branch_reason"] for node in await server.nodes(session)]

    return reasons


def chat(*messages, **more):
    return "chat/completions", {"messages": [*messages], **more}


def raw(prompt):
    return "completions", {"prompt": prompt}


async def test_a_chat_after_a_raw_prompt_repeats_no_messages(ask):
    assert await ask(raw("once"), chat(USER)) == [None, "a raw prompt came before"]


async def test_a_raw_prompt_after_a_chat_goes_on_differently(ask):
    assert await ask(chat(USER), raw("once")) == [None, "the prompt goes on differently"]


async def test_a_chat_is_compared_with_chats_where_there_are_some(ask):
    reasons = await ask(raw("once"), chat(USER), chat(USER), chat(OTHER))
    assert reasons[2:] == ["the same messages again", "messages[0].content differs"]


async def test_other_tools_are_another_conversation(ask):
    assert await ask(raw("once"), chat(USER, tools=TOOLS)) == [None, "tools differ"]


async def test_what_extends_a_node_branches_off_nothing(ask):
    answer = {"role": "assistant", "content": "Hi."}
    assert await ask(chat(USER), chat(USER, answer, OTHER)) == [None, None]
