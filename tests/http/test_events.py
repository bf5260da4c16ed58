"""`GET /events`: what is recorded is told while it happens."""

import asyncio
import json

import pytest

from rolltap.testing import MODEL, ScriptedTokenBackend


async def entries(stream, until):
    """The events up to the first of a kind."""
    seen = []
    async with asyncio.timeout(10):
        while not seen or seen[-1]["type"] != until:
            line = await stream.content.readline()
            if line.startswith(b"data: "):
                seen.append(json.loads(line[6:]))
    return seen


@pytest.fixture
async def server(rolltap_serve, rolltap_tokenizer):
    return await rolltap_serve(
        ScriptedTokenBackend(rolltap_tokenizer, ["Blue.", "Red."]), model={"tokenizer": rolltap_tokenizer}
    )


async def test_each_entry_of_every_session_is_told_in_order(server, openai_client):
    async with server.http.get("/events") as stream:
        session = await server.session(group="colours")
        client = openai_client(server, session)
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Which?"}])
        seen = await entries(stream, "call")
    assert {event["session"] for event in seen} == {session}
    assert [event["seq"] for event in seen] == [*range(1, len(seen) + 1)]
    assert seen[0]["info"]["group"] == "colours"
    (told,) = seen[-1]["nodes"]
    (node,) = await server.nodes(session)
    assert told["node_id"] == node["metadata"]["node_id"]
    assert told["num_generated"] == node["metadata"]["num_generated"]
    assert (told["message"]["content"], told["trainable"]) == ("Blue.", True)


async def test_one_sessions_stream_tells_of_no_other(server, openai_client):
    mine, other = await server.session(), await server.session()
    async with server.http.get("/events", params={"session": mine}) as stream:
        for session in (other, mine):
            client = openai_client(server, session)
            await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Which?"}]
            )
        seen = await entries(stream, "call")
    assert {event["session"] for event in seen} == {mine}


async def test_an_unknown_session_is_refused(server):
    async with server.http.get("/events", params={"session": "none"}) as response:
        assert response.status == 404


async def test_a_stranger_is_told_nothing(rolltap_serve, rolltap_tokenizer):
    server = await rolltap_serve(
        ScriptedTokenBackend(rolltap_tokenizer),
        model={"tokenizer": rolltap_tokenizer},
        config={"server": {"api_keys": ["secret"]}},
    )
    async with server.http.get("/events") as response:
        assert response.status == 401


async def test_the_stream_ends_with_the_server(server):
    async with server.http.get("/events") as stream:
        await stream.content.readline()
        async with asyncio.timeout(10):
            await server.app.shutdown()
            await stream.content.read()
