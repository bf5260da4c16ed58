"""The Responses API of a running server, by the real openai client: references, kept replies, freeform tools."""

import json
from typing import Any

import openai
import pytest
from openai.types.responses import CompactedResponse, Response

from rolltap import ChatDelta, ToolCall, ToolCallDelta
from rolltap.testing import MODEL, ScriptedChatBackend, ScriptedTokenBackend, assert_exact

CALL = '<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>'
EDIT_CALL = '<tool_call>\n{"name": "edit", "arguments": {"input": "*** Begin\\n+a"}}\n</tool_call>'
TOOLS: Any = [{"type": "function", "name": "run", "parameters": {"type": "object"}, "strict": False}]
EDIT: Any = {
    "type": "custom",
    "name": "edit",
    "description": "edits",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}


@pytest.fixture
async def start(rolltap_serve, rolltap_tokenizer, openai_client):
    async def begin(*script, **settings):
        backend = ScriptedTokenBackend(rolltap_tokenizer, script)
        server = await rolltap_serve(backend, **settings)
        session = await server.session()
        return server, backend, session, openai_client(server, session)

    return begin


async def ask(client, streamed=False, **fields) -> Any:
    if not streamed:
        return await client.responses.create(model=MODEL, **fields)
    async with client.responses.stream(model=MODEL, **fields) as stream:
        return await stream.get_final_response()


def reference(item) -> Any:
    return {"type": "item_reference", "id": item.id}


# References


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("said", ["Look. " + CALL, f"<think>Hm.</think>Look. {CALL}\n{CALL}"])
async def test_references_are_the_items_that_the_session_gave(start, streamed, said):
    model = {"reasoning_parser": "think"}
    server, backend, session, client = await start(said, "Two files.", model=model)
    asked: list[Any] = [{"role": "user", "content": "what is there?"}]
    first = await ask(client, streamed, input=asked, tools=TOOLS)
    calls = [item for item in first.output if item.type == "function_call"]
    assert calls
    asked += [reference(item) for item in first.output]
    asked += [{"type": "function_call_output", "call_id": call.call_id, "output": "a b"} for call in calls]
    second = await ask(client, streamed, input=asked, tools=TOOLS)
    assert second.output_text == "Two files."
    (node,) = await server.nodes(session)
    assert node["metadata"]["trainable"]
    assert_exact(node, backend.calls[1], backend.calls[0])


async def test_one_of_several_calls_can_be_named(start):
    both = f"{CALL}\n{CALL.replace('ls', 'pwd')}"
    _, backend, _, client = await start(both, "ok")
    first = await ask(client, input="a", tools=TOOLS)
    _, second = first.output
    result = {"type": "function_call_output", "call_id": second.call_id, "output": "/"}
    await ask(client, input=[{"role": "user", "content": "b"}, {"id": second.id}, result], tools=TOOLS)
    prompt = backend._tokenizer.decode(backend.calls[1].prompt_ids)
    assert "pwd" in prompt
    assert '"ls"' not in prompt


@pytest.mark.parametrize("name", ["msg_0_0", "fc_1_9", "nothing", ""])
async def test_what_was_never_given_is_named(start, name):
    _, _, _, client = await start()
    with pytest.raises(openai.BadRequestError, match=r"input\[0\]\.id") as caught:
        await ask(client, input=[{"type": "item_reference", "id": name}])
    assert caught.value.code == "item_not_found"


async def test_nothing_is_kept_without_a_session_or_where_the_client_says_no(start, openai_client):
    server, _, _, client = await start("One.", "Two.")
    other = await ask(openai_client(server), input="a")
    unkept = await ask(client, input="a", store=False)
    assert (other.store, unkept.store) == (False, False)
    for asker, reply in ((openai_client(server), other), (client, unkept)):
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(asker, input=[reference(reply.output[0])])
        assert caught.value.code == "item_not_found"
        with pytest.raises(openai.NotFoundError):
            await asker.responses.retrieve(reply.id)


# Replies asked for again


def dumped(value):
    """A value of the SDK's without what its helper for streams adds."""
    if isinstance(value, list):
        return [dumped(item) for item in value]
    if isinstance(value, dict):
        return {name: dumped(item) for name, item in value.items() if not name.startswith("parsed")}
    return dumped(value.to_dict()) if hasattr(value, "to_dict") else value


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_reply_can_be_had_again(start, streamed):
    _, _, _, client = await start("Look. " + CALL, "ok")
    given = await ask(
        client,
        streamed,
        input="what?",
        instructions="Be brief.",
        tools=TOOLS,
        temperature=0.5,
        max_output_tokens=90,
    )
    again = await client.responses.retrieve(given.id)
    Response.model_validate(again.model_dump())
    for field in (
        "id",
        "model",
        "status",
        "output",
        "instructions",
        "temperature",
        "max_output_tokens",
        "usage",
        "tools",
    ):
        assert dumped(getattr(again, field)) == dumped(getattr(given, field)), field
    page = await client.responses.input_items.list(given.id, order="asc")
    assert [(item.role, item.content[0].text) for item in page.data] == [("user", "what?")]


async def test_input_items_are_the_whole_conversation_in_pages(start):
    _, _, _, client = await start(CALL, "Two files.")
    first = await ask(client, input="what?", tools=TOOLS)
    result: Any = [{"type": "function_call_output", "call_id": first.output[0].call_id, "output": "a b"}]
    second = await ask(client, input=result, previous_response_id=first.id, tools=TOOLS)
    kinds = [item.type async for item in client.responses.input_items.list(second.id, limit=1)]
    assert kinds == ["function_call_output", "function_call", "message"]


async def test_a_deleted_reply_is_gone_and_its_node_stays(start):
    server, _, session, client = await start("One.")
    given = await ask(client, input="a")
    await client.responses.delete(given.id)
    with pytest.raises(openai.NotFoundError, match="deleted"):
        await client.responses.retrieve(given.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        await ask(client, input="b", previous_response_id=given.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.delete(given.id)
    assert len(await server.nodes(session)) == 1


async def test_replies_are_their_sessions_own(start, openai_client):
    server, _, _, client = await start("One.")
    given = await ask(client, input="a")
    stranger = openai_client(server, await server.session())
    with pytest.raises(openai.NotFoundError):
        await stranger.responses.retrieve(given.id)


async def test_with_keys_a_sessions_id_opens_its_replies_and_nothing_else_does(
    rolltap_serve, rolltap_tokenizer, openai_client
):
    backend = ScriptedTokenBackend(rolltap_tokenizer, ["One."])
    server = await rolltap_serve(backend, config={"server": {"api_keys": ["k"]}})
    headers = {"authorization": "Bearer k"}
    async with server.http.post("/sessions/create", json={}, headers=headers) as response:
        session = (await response.json())["uuid"]
    given = await ask(openai_client(server, session), input="a")
    by_key = openai_client(server, api_key=session)
    assert (await by_key.responses.retrieve(given.id)).id == given.id
    with pytest.raises(openai.AuthenticationError):
        await openai_client(server).responses.retrieve(given.id)


async def test_input_tokens_are_those_of_the_next_call(start):
    _, backend, _, client = await start("One.")
    counted = await client.responses.input_tokens.count(
        model=MODEL, input="hello there", instructions="Be brief."
    )
    await ask(client, input="hello there", instructions="Be brief.")
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == len(backend.calls[0].prompt_ids)


async def test_a_compaction_stands_for_the_conversation(start):
    server, backend, session, client = await start("One.", "They said one.", "Two.")
    first = await ask(client, input="say one")
    items: Any = [{"role": "user", "content": "say one"}, *first.output]
    compacted = await client.responses.compact(model=MODEL, input=items)
    CompactedResponse.model_validate(compacted.model_dump())
    assert [item.type for item in compacted.output] == ["compaction"]
    assert compacted.usage.output_tokens > 0
    await ask(client, input=[*compacted.output, {"role": "user", "content": "go on"}])
    prompt = backend._tokenizer.decode(backend.calls[2].prompt_ids)
    assert "They said one." in prompt
    assert "say one" not in prompt
    assert len(await server.nodes(session)) == 2


# The envelope


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_reply_says_again_what_was_asked(start, streamed):
    _, _, _, client = await start("One.")
    asked: Any = {
        "instructions": "Be brief.",
        "presence_penalty": 0.5,
        "service_tier": "flex",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "metadata": {"a": "b"},
        "user": "u",
        "max_tool_calls": 3,
    }
    body = {"extra_body": {"presence_penalty": asked.pop("presence_penalty")}}
    reply = await ask(client, streamed, input="a", **asked, **body)
    said = Response.model_validate(reply.model_dump()).model_dump(exclude_unset=True)
    assert said["presence_penalty"] == 0.5
    for name, value in asked.items():
        kept = said[name] if name not in {"reasoning", "text"} else {key: said[name][key] for key in value}
        assert kept == value, name
    assert (reply.background, reply.store, reply.error, reply.status) == (False, True, None, "completed")
    assert reply.completed_at >= reply.created_at


# Freeform tools


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_freeform_tool_is_a_function_to_the_model_and_free_text_to_the_client(start, streamed):
    server, backend, session, client = await start(EDIT_CALL, "Done.")
    asked: list[Any] = [{"role": "user", "content": "patch it"}]
    first = await ask(client, streamed, input=asked, tools=[EDIT, *TOOLS])
    prompt = backend._tokenizer.decode(backend.calls[0].prompt_ids)
    assert "start: /.+/" in prompt
    (call,) = first.output
    assert (call.type, call.name, call.input) == ("custom_tool_call", "edit", "*** Begin\n+a")
    assert first.tools[0].type == "custom"
    assert first.tools[0].format.definition == "start: /.+/"
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "ok"}
    second = await ask(client, streamed, input=[*asked, call, result], tools=[EDIT, *TOOLS])
    assert second.output_text == "Done."
    (node,) = await server.nodes(session)
    assert_exact(node, backend.calls[1], backend.calls[0])


async def test_its_input_is_streamed_as_it_is_written(rolltap_serve, openai_client):
    pieces = ['{"input": "*** Be', "gin\\", 'n+a"}']
    deltas = [
        ChatDelta(tool_calls=[ToolCallDelta(id="c", name="edit")]),
        *(ChatDelta(tool_calls=[ToolCallDelta(arguments=piece)]) for piece in pieces),
        ChatDelta(finish_reason="tool_calls"),
    ]
    server = await rolltap_serve(ScriptedChatBackend([deltas]))
    client = openai_client(server)
    stream = await client.responses.create(model=MODEL, input="x", tools=[EDIT], stream=True)
    events = [event async for event in stream]
    written = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert written == ["*** Be", "gin", "\n+a"]
    (done,) = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert done.input == events[-1].response.output[0].input == "*** Begin\n+a"
    assert not [event for event in events if "function_call_arguments" in event.type]


@pytest.mark.parametrize(
    "tools",
    [
        [{"type": "web_search"}],
        [{"type": "web_search"}, {"type": "mcp", "server_label": "s", "server_url": "https://x"}],
        [{"type": "namespace", "name": "n", "tools": [{"type": "image_generation"}]}],
    ],
)
async def test_a_request_without_a_working_tool_is_refused_by_name(start, tools):
    server, _, session, client = await start("nothing")
    with pytest.raises(openai.BadRequestError, match=r"web_search|image_generation") as caught:
        await ask(client, input="search", tools=tools)
    assert caught.value.param == "tools"
    assert await server.nodes(session) == []
    await ask(client, input="no need", tools=tools, tool_choice="none")


# What is left of providers' tools, and what upstreams want back


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (
            [
                {
                    "type": "local_shell_call",
                    "id": "l",
                    "call_id": "c",
                    "status": "completed",
                    "action": {"type": "exec", "command": ["pwd"], "env": {}},
                },
                {"type": "local_shell_call_output", "id": "o", "output": "/srv"},
            ],
            ["pwd", "/srv"],
        ),
        (
            [
                {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
                {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a b", "stderr": ""}]},
            ],
            ["ls", "a b"],
        ),
        (
            [
                {
                    "type": "apply_patch_call",
                    "call_id": "c",
                    "operation": {"type": "delete_file", "path": "x.py"},
                },
                {"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": "gone"},
            ],
            ["x.py", "gone"],
        ),
        (
            [
                {
                    "type": "apply_patch_call",
                    "call_id": "c",
                    "operation": {"type": "delete_file", "path": "x.py"},
                },
                {"type": "apply_patch_call_output", "call_id": "c", "status": "failed"},
            ],
            ["failed"],
        ),
        (
            [
                {"type": "tool_search_call", "arguments": {"query": "maps"}},
                {"type": "tool_search_output", "tools": []},
            ],
            ["maps"],
        ),
        (
            [
                {
                    "type": "mcp_call",
                    "id": "m",
                    "name": "n",
                    "server_label": "s",
                    "arguments": "{}",
                    "output": "sunny",
                }
            ],
            ["sunny"],
        ),
        ([{"type": "computer_call", "id": "c", "call_id": "c", "action": {"type": "wait"}}], ["wait"]),
        ([{"type": "code_interpreter_call", "id": "c", "code": "1+1", "outputs": []}], ["1+1"]),
        ([{"type": "additional_tools", "role": "developer", "tools": []}], []),
        ([{"type": "compaction", "encrypted_content": "of somebody else"}], []),
        ([{"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": []}], []),
        ([{"type": "program", "id": "p", "call_id": "p", "code": "x", "fingerprint": "f"}], []),
    ],
)
async def test_what_providers_tools_left_in_the_history_is_told_in_words(start, items, words):
    _, backend, _, client = await start("ok")
    around: Any = [{"role": "user", "content": "before"}, *items, {"role": "user", "content": "after"}]
    assert (await ask(client, input=around)).output_text == "ok"
    prompt = backend._tokenizer.decode(backend.calls[0].prompt_ids)
    for word in ("before", *words, "after"):
        assert word in prompt


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("thought", ["", "Hm."])
async def test_what_an_upstream_wants_back_goes_through_the_client(
    rolltap_serve, openai_client, streamed, thought
):
    details = [{"type": "reasoning.encrypted", "data": "zz"}]
    signed = {"extra_content": {"google": {"thought_signature": "QUJD"}}}
    deltas = [
        ChatDelta(reasoning=thought, extra={"reasoning_details": details, "annotations": []}),
        ChatDelta(tool_calls=[ToolCall("run", "{}", "c", extra=signed)]),
        ChatDelta(finish_reason="tool_calls"),
    ]
    backend = ScriptedChatBackend([deltas, "ok"])
    client = openai_client(await rolltap_serve(backend))
    first = await ask(client, streamed, input="a", tools=TOOLS)
    items = json.loads(json.dumps([item.model_dump(exclude_unset=True) for item in first.output]))
    result = {"type": "function_call_output", "call_id": "c", "output": "x"}
    await ask(client, streamed, input=[{"role": "user", "content": "a"}, *items, result], tools=TOOLS)
    said = backend.requests[1].messages[1]
    assert said.extra == {"reasoning_details": details}
    assert said.tool_calls[0].extra == signed
    assert said.reasoning == (thought or None)
