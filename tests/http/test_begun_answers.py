"""An answer that the client has begun is gone on from at its last word, exactly, and is one answer in the record."""

from contextlib import AsyncExitStack
from typing import Any

import anthropic
import pytest

from rolltap.testing import MODEL, Reply, ScriptedChatBackend, ScriptedTokenBackend, assert_exact
from rolltap.testing.tokenizers import FAMILIES

ASK: Any = {"role": "user", "content": "Name a colour."}
BEGUN: Any = {"role": "assistant", "content": "My colour is"}
NEXT: Any = {"role": "user", "content": "Why?"}


@pytest.fixture
async def start(rolltap_serve, tmp_path):
    async with AsyncExitStack() as stack:

        async def run(*script, style="chatml", **model):
            script = script[0] if callable(script[0]) else script
            backend = ScriptedTokenBackend(str(FAMILIES[style].build(tmp_path / style)), script)
            server = await rolltap_serve(backend, model=model)
            session = await server.session()
            client = anthropic.AsyncAnthropic(base_url=f"{server.url}/{session}", api_key="x", max_retries=0)
            client = await stack.enter_async_context(client)

            async def ask(*messages, streamed=False, **options):
                asked: Any = {"model": MODEL, "max_tokens": 99, "messages": list(messages), **options}
                if not streamed:
                    return (await client.messages.create(**asked)).content[0].text
                async with client.messages.stream(**asked) as stream:
                    return await stream.get_final_text()

            return server, backend, session, ask

        yield run


@pytest.mark.parametrize("style", sorted(FAMILIES))
@pytest.mark.parametrize("streamed", [False, True])
async def test_the_prompt_ends_with_the_begun_answer(start, style, streamed):
    server, backend, session, ask = await start(" blue.", "It is calm.", style=style)
    assert await ask(ASK, BEGUN, streamed=streamed) == " blue."
    (call,) = backend.calls
    assert backend._tokenizer.decode(call.prompt_ids).endswith("My colour is")
    whole = {"role": "assistant", "content": "My colour is blue."}
    assert await ask(ASK, whole, NEXT, streamed=streamed) == "It is calm."
    (node,) = await server.nodes(session, messages="true")
    assert_exact(node, backend.calls[1], backend.calls[0])
    assert [message["content"] for message in node["messages"]] == [
        ASK["content"],
        whole["content"],
        NEXT["content"],
        "It is calm.",
    ]


async def test_a_later_turn_is_begun_behind_the_recorded_ids(start):
    server, backend, session, ask = await start("Red.", " blue.", "Yes.")
    first = {"role": "assistant", "content": await ask(ASK)}
    await ask(ASK, first, NEXT, BEGUN)
    await ask(ASK, first, NEXT, {"role": "assistant", "content": "My colour is blue."}, ASK)
    (node,) = await server.nodes(session)
    assert_exact(node, backend.calls[2], backend.calls[1], backend.calls[0])


@pytest.mark.parametrize("apart", [False, True])
async def test_clients_may_send_the_beginning_and_the_rest_apart(start, apart):
    server, _, session, ask = await start(" blue.", "Yes.")
    rest = await ask(ASK, BEGUN)
    answer = [BEGUN, {"role": "assistant", "content": rest}]
    if not apart:
        answer = [{"role": "assistant", "content": [{"type": "text", "text": BEGUN["content"] + rest}]}]
    await ask(ASK, *answer, NEXT)
    assert len(await server.nodes(session)) == 1


async def test_an_answer_that_was_cut_is_gone_on_from_in_its_own_ids(start):
    """The model's own tokens stand, though the tokenizer would spell the text with others."""
    server, backend, session, ask = await start(lambda ids, sampling: next(replies), reasoning_parser="")
    spelled = [backend.encode(letter)[0] for letter in "hello"]
    assert spelled != backend.encode("hello")
    replies = iter([Reply(ids=spelled, finish_reason="length"), Reply(text=" you."), Reply(text="Bye.")])
    cut = await ask(ASK)
    assert await ask(ASK, {"role": "assistant", "content": cut}) == " you."
    assert backend.calls[1].prompt_ids == backend.calls[0].prompt_ids + spelled
    await ask(ASK, {"role": "assistant", "content": cut + " you."}, NEXT)
    nodes = await server.nodes(session)
    assert_exact(nodes[-1], backend.calls[2], backend.calls[1], backend.calls[0])
    assert len(nodes) == 1


async def test_count_and_render_know_the_begun_answer(start):
    server, backend, session, ask = await start(" blue.")
    body = {"model": MODEL, "max_tokens": 9, "messages": [ASK, BEGUN]}
    _, rendered = await server.post(f"/{session}/v1/messages/render", body)
    _, counted = await server.post(f"/{session}/v1/messages/count_tokens", body)
    await ask(ASK, BEGUN)
    assert rendered["token_ids"] == backend.calls[0].prompt_ids
    assert counted["input_tokens"] == len(backend.calls[0].prompt_ids)


async def test_the_template_may_be_asked_for_all_of_it(start):
    _, backend, _, ask = await start(" blue.", "Yes.", history="template")
    await ask(ASK, BEGUN)
    assert backend._tokenizer.decode(backend.calls[0].prompt_ids).endswith("My colour is")


async def test_a_chat_backend_is_sent_the_beginning_and_the_record_has_the_whole(rolltap_serve):
    backend = ScriptedChatBackend([" blue.", "Yes."])
    server = await rolltap_serve(backend)
    session = await server.session()
    for messages in ([ASK, BEGUN], [ASK, {"role": "assistant", "content": "My colour is blue."}, NEXT]):
        body = {"model": MODEL, "max_tokens": 9, "messages": messages}
        status, _ = await server.post(f"/{session}/v1/messages", body)
        assert status == 200
    assert backend.requests[0].messages[-1].text == "My colour is"
    (node,) = await server.nodes(session, messages="true")
    assert [message["content"] for message in node["messages"]][1] == "My colour is blue."
