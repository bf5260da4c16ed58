"""The trainers' client with a real server: a group of rollouts from its creation to its rows."""

import asyncio

import openai
import pytest

from rolltap import BadRequest, NotFound
from rolltap.client import AsyncClient, Client
from rolltap.testing import MODEL, ScriptedTokenBackend


@pytest.fixture
async def server(rolltap_serve, rolltap_tokenizer):
    return await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, lambda ids, sampling: "Hello."))


async def say(session):
    async with openai.AsyncOpenAI(base_url=session.base_url, api_key="unused", max_retries=0) as agent:
        return await agent.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi."}])


async def test_a_group_from_its_creation_to_its_rows(server):
    async with AsyncClient(server.url) as client:
        sessions = await client.create(group="task-1", n=3, labels={"task": 1}, sampling={"temperature": 0.5})

        async def play(session, reward):
            await say(session)
            await client.reward(session, reward)
            await client.reward(session, 0.25, name="advantage")
            await client.seal(session)

        agents = asyncio.gather(*(play(session, float(number)) for number, session in enumerate(sessions)))
        summaries = await client.wait(group="task-1", timeout=20)
        await agents
        assert [each["state"] for each in summaries] == ["sealed"] * 3
        rows = await client.rows(sessions)
        assert [(row["session"], row["reward"]) for row in rows] == [
            (session.uuid, float(number)) for number, session in enumerate(sessions)
        ]
        assert all(row["advantage"] == 0.25 and row["label"] == {"task": 1} for row in rows)
        (tinker, *_) = await client.rows(sessions[:1], format="tinker")
        assert set(tinker["loss_fn_inputs"]["advantages"]["data"]) == {0.0, 0.25}
        listed = [each["uuid"] for each in summaries]
        assert await client.rows(group="task-1") == sorted(rows, key=lambda row: listed.index(row["session"]))
        with pytest.raises(openai.ConflictError, match="sealed"):
            await say(sessions[0])
        assert (await client.delete(group="task-1"))["deleted"] == 3
        with pytest.raises(NotFound):
            await client.nodes(sessions[0])


async def test_what_is_late_is_told_at_the_deadline(server):
    async with AsyncClient(server.url) as client:
        early, late = await client.create(n=2)
        await say(early)
        await client.seal(early)
        states = {each["uuid"]: each["state"] for each in await client.wait([early, late], 0.3)}
        assert states == {early.uuid: "sealed", late.uuid: "open"}
        sealed = [row["session"] async for row in client.export(sealed=True)]
        assert sealed == [early.uuid]


async def test_weights_change_between_calls(server):
    async with AsyncClient(server.url) as client:
        (session,) = await client.create()
        await say(session)
        await client.pause("keep")
        assert (await client.state())["paused"]
        await client.weights(7)
        await client.resume()
        await say(session)
        rows = await client.rows(session)
        assert [set(filter(None, row["versions"])) for row in rows] == [set(), {"7"}]


async def test_what_the_server_refuses_is_raised(server):
    async with AsyncClient(server.url) as client:
        with pytest.raises(BadRequest, match="no plugin offers the tool parser 'nobody'") as refused:
            await client.create(n=2, tool_parser="nobody")
        assert refused.value.info.param == "tool_parser"
        assert [each async for each in client.sessions()] == []


async def test_a_page_follows_the_other(server):
    async with AsyncClient(server.url) as client:
        sessions = await client.create(n=5)
        found = [each["uuid"] async for each in client.sessions()]
        assert sorted(found) == sorted(each.uuid for each in sessions)


async def test_without_await(server):
    def work():
        with Client(server.url) as client:
            sessions = client.create(group="g", n=2)
            for session in sessions:
                with openai.OpenAI(base_url=session.base_url, api_key="unused") as agent:
                    agent.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi."}])
                client.reward(session, 1.0)
                client.seal(session)
            client.wait(sessions, timeout=20)
            return client.rows(sessions, format="verl")

    rows = await asyncio.to_thread(work)
    assert [row["reward_score"] for row in rows] == [1.0, 1.0]
