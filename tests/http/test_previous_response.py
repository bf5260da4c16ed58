"""Replies referred to by their ids, by the real openai client: the record is that of a client that sends everything."""

from typing import Any

import openai
import pytest

from rolltap import Store, hookimpl
from rolltap.record import CallRecorded, SessionCreated, decode_entry, encode_entry
from rolltap.testing import MODEL, ScriptedTokenBackend, assert_exact

CALL = '<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>'
TOOLS: Any = [{"type": "function", "name": "run", "parameters": {"type": "object"}, "strict": False}]


class LogStore(Store):
    """Logs as bytes, which outlive the server: another server with the same store takes the sessions up."""

    def __init__(self):
        self.logs: dict[str, list[bytes]] = {}

    async def append(self, session, entry):
        if isinstance(entry, SessionCreated):
            self.logs.setdefault(session, [])
        log = self.logs[session]
        log.append(encode_entry(entry))
        return len(log)

    async def read(self, session, after=0):
        return [(n, decode_entry(data)) for n, data in enumerate(self.logs.get(session, ()), 1) if n > after]

    async def sessions(self, *, after=0, limit=1000):
        return list(enumerate(self.logs, 1))[after:][:limit]

    async def delete(self, session):
        self.logs.pop(session, None)

    @hookimpl
    def create_store(self, kind):
        return self if kind == "log" else None


@pytest.fixture
async def start(rolltap_serve, rolltap_tokenizer, openai_client):
    async def begin(*script, session=None, **settings):
        backend = ScriptedTokenBackend(rolltap_tokenizer, script)
        server = await rolltap_serve(backend, **settings)
        session = session or await server.session()
        return server, backend, session, openai_client(server, session)

    return begin


async def ask(client, streamed=False, **fields):
    if not streamed:
        return await client.responses.create(model=MODEL, **fields)
    async with client.responses.stream(model=MODEL, **fields) as stream:
        return await stream.get_final_response()


@pytest.mark.parametrize("streamed", [False, True])
async def test_turns_by_id_are_one_node(start, streamed):
    server, backend, session, client = await start(CALL, "Two files.", "You are welcome.")
    same = {"instructions": "Be brief.", "tools": TOOLS}
    first = await ask(client, streamed, input="what is there?", **same)
    (call,) = first.output
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "a b"}]
    second = await ask(client, streamed, input=result, previous_response_id=first.id, **same)
    assert (second.output_text, second.previous_response_id) == ("Two files.", first.id)
    third = await ask(client, streamed, input="Thanks!", previous_response_id=second.id, **same)
    assert third.output_text == "You are welcome."
    (node,) = await server.nodes(session)
    assert node["metadata"]["trainable"]
    assert node["metadata"].get("branch_reason") is None
    assert_exact(node, backend.calls[2], *backend.calls[:2])


async def test_the_record_is_that_of_a_client_which_sends_everything(start):
    script = ("One.", "Two.")
    server, _, session, client = await start(*script)
    first = await ask(client, input="a", instructions="Be brief.")
    await ask(client, input="b", instructions="Be brief.", previous_response_id=first.id)
    whole, _, another, other = await start(*script)
    items: Any = [{"role": "user", "content": "a"}]
    first = await ask(other, input=items, instructions="Be brief.", store=False)
    items += [*first.output, {"role": "user", "content": "b"}]
    await ask(other, input=items, instructions="Be brief.", store=False)
    (by_id,), (by_history,) = await server.nodes(session), await whole.nodes(another)
    assert by_id["tokens"] == by_history["tokens"]
    assert by_id["masked_tokens"] == by_history["masked_tokens"]


async def test_instructions_are_replaced_not_added(start):
    server, _, session, client = await start("One.", "Two.", "Three.")
    first = await ask(client, input="a", instructions="Be brief.")
    second = await ask(client, input="b", instructions="Be kind.", previous_response_id=first.id)
    await ask(client, input="c", previous_response_id=second.id)
    texts = [node["full_text"] for node in await server.nodes(session)]
    assert len(texts) == 3  # each begins with another system message, so none goes on from another
    kind, without = (next(text for text in texts if mark in text) for mark in ("Be kind.", "Three."))
    assert "Be brief." not in kind
    assert "One." in kind
    for instructions in ("Be brief.", "Be kind."):
        assert instructions not in without
    assert without.index("One.") < without.index("Two.") < without.index("Three.")


async def test_two_requests_may_go_on_from_one_reply(start):
    server, backend, session, client = await start("One.", "Two.", "Three.")
    first = await ask(client, input="a")
    for question in ("b", "c"):
        await ask(client, input=question, previous_response_id=first.id)
    nodes = await server.nodes(session)
    assert len(nodes) == 2
    shared = backend.calls[0].prompt_ids + backend.calls[0].output_ids[0]
    assert all(node["tokens"][: len(shared)] == shared for node in nodes)


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_unknown_id_is_refused_in_openais_words(start, streamed):
    server, _, session, client = await start()
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(client, streamed, input="a", previous_response_id="resp_0")
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
    assert "Previous response with id 'resp_0' not found" in caught.value.message
    assert await server.nodes(session) == []


async def test_another_sessions_reply_is_unknown(start, openai_client):
    server, _, _, client = await start("One.")
    first = await ask(client, input="a")
    other = openai_client(server, await server.session())
    with pytest.raises(openai.BadRequestError, match="not found"):
        await ask(other, input="b", previous_response_id=first.id)


async def test_a_reply_with_store_false_is_not_kept(start):
    _, _, _, client = await start("One.")
    first = await ask(client, input="a", store=False)
    assert first.store is False
    with pytest.raises(openai.BadRequestError, match="not found"):
        await ask(client, input="b", previous_response_id=first.id)


async def test_without_a_session_nothing_is_kept_and_the_error_says_so(start, openai_client):
    server, _, _, _ = await start("One.")
    client = openai_client(server)
    first = await ask(client, input="a")
    with pytest.raises(openai.BadRequestError, match="only within a session") as caught:
        await ask(client, input="b", previous_response_id=first.id)
    assert caught.value.param == "previous_response_id"


async def test_what_is_kept_grows_with_what_is_new(start):
    """Clients that send everything each time leave `store` out as well: nothing of it is kept twice."""
    store, turns = LogStore(), 12
    script = [CALL, *(f"Answer {turn}." for turn in range(1, turns)), "Bye.", "Bye."]
    _, backend, session, client = await start(*script, plugins=[store], config={"store": {"kind": "log"}})
    items: list[Any] = []
    for turn in range(turns):
        items.append({"role": "user", "content": f"Question {turn}"})
        answer = await ask(client, input=items, instructions="Rule", tools=TOOLS)
        items += answer.output
        if answer.output[0].type == "function_call":
            items.append({"type": "function_call_output", "call_id": answer.output[0].call_id, "output": "a"})
    calls = [entry for _, entry in await store.read(session) if isinstance(entry, CallRecorded)]
    assert (
        sum(len(call.prompt.messages) for call in calls) == 1 + turns + 1
    )  # the rule, questions, the call's result
    assert [len(call.definitions) for call in calls] == [1] + [0] * (len(calls) - 1)  # the tools, once
    await ask(client, input="So?", previous_response_id=answer.id, instructions="Rule", tools=TOOLS)
    by_id = backend.calls[-1].prompt_ids
    items.append({"role": "user", "content": "So?"})
    await ask(client, input=items, instructions="Rule", tools=TOOLS, store=False)
    assert backend.calls[-1].prompt_ids == by_id


async def test_a_restarted_server_still_knows_the_replies(start):
    store = LogStore()
    settings = {"plugins": [store], "config": {"store": {"kind": "log"}}}
    _, before, session, client = await start("One.", **settings)
    first = await ask(client, input="a", instructions="Be brief.")
    server, backend, _, client = await start("Two.", session=session, **settings)
    second = await ask(client, input="b", instructions="Be brief.", previous_response_id=first.id)
    assert second.output_text == "Two."
    (node,) = await server.nodes(session)
    (call,) = backend.calls
    assert node["tokens"] == call.prompt_ids + call.output_ids[0]
    recorded = before.calls[0].prompt_ids + before.calls[0].output_ids[0]
    assert call.prompt_ids[: len(recorded)] == recorded
