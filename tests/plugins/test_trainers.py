"""Trainers' hooks as far as they need no trainer: what agents play, what is collected, what Atropos is sent.

`tests/live/test_live_trainers.py` has them in the trainers' own hands.
"""

import asyncio

import openai
import pytest
from aiohttp import web

from rolltap.client import AsyncClient, Session
from rolltap.testing import MODEL, ScriptedTokenBackend
from rolltap_plugins.trainers.atropos import AtroposEnvironment
from rolltap_plugins.trainers.playing import group_advantages, play_group
from rolltap_plugins.trainers.trl import NotOneRow, recorded_reward, rollout_func


@pytest.fixture
async def server(rolltap_serve, rolltap_tokenizer):
    return await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, lambda ids, sampling: "Hello."))


def ask(session, *contents):
    with openai.OpenAI(base_url=session.base_url, api_key="unused", max_retries=0) as client:
        for content in contents:
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": content}])


def agent(session, task):
    ask(session, task)
    return float(len(task))


async def slow_agent(session, task):
    await asyncio.to_thread(ask, session, task)


@pytest.mark.parametrize(("played", "reward"), [(agent, 3.0), (slow_agent, None)])
async def test_a_group_is_played_rewarded_and_sealed(server, played, reward):
    async with AsyncClient(server.url) as client:
        rewards = await play_group(client, played, "Hi.", n=2, group="g", labels={"a": 1})
        assert list(rewards.values()) == [reward, reward]
        for session in rewards:
            summary = await client.session(session)
            assert (summary["state"], summary["labels"], summary.get("reward")) == (
                "sealed",
                {"a": 1},
                reward,
            )


def test_advantages_are_told_from_the_group():
    sessions = [Session(uuid=name, url="http://h") for name in "abc"]
    found = group_advantages(dict(zip(sessions, [0.0, 2.0, None], strict=True)))
    assert found == pytest.approx({"a": -1.0, "b": 1.0, "c": 0.0})
    assert group_advantages(dict.fromkeys(sessions)) == {"a": 0.0, "b": 0.0, "c": 0.0}
    assert set(group_advantages(dict.fromkeys(sessions, 1.0)).values()) == {0.0}


async def test_trl_gets_a_row_a_prompt_in_their_order(server):
    prompts = ["Hi.", "Good morning."]
    batch = await asyncio.to_thread(
        rollout_func(server.url, agent, sampling={"temperature": 0.5}), prompts, None
    )
    assert batch["reward"] == [3.0, 13.0]
    for prompt_ids, completion_ids, session in zip(
        batch["prompt_ids"], batch["completion_ids"], batch["session"], strict=True
    ):
        (node,) = await server.nodes(session)
        assert prompt_ids + completion_ids == node["tokens"]
        assert node["metadata"]["sampling"]["temperature"] == 0.5
    assert len(set(batch["group"])) == 1
    assert recorded_reward(["a", "b"], reward=batch["reward"], prompts=prompts) == batch["reward"]


async def test_trl_is_told_where_a_rollout_is_not_one_sequence(server):
    def branching(session, task):
        ask(session, "One.", "Two.")

    with pytest.raises(NotOneRow, match=r"has 2 sequences .* choose with rollout_func\(choose=…\)"):
        await asyncio.to_thread(rollout_func(server.url, branching), ["Hi."], None)
    last = rollout_func(server.url, branching, choose=lambda rows: rows[-1])
    batch = await asyncio.to_thread(last, ["Hi."], None)
    assert len(batch["prompt_ids"]) == 1


class Atropos:
    """Atropos' API, as far as an environment uses it."""

    def __init__(self):
        self.asked = []
        self.trainer = False
        self.app = web.Application()
        self.app.router.add_post("/{path}", self.post)

    async def post(self, request):
        path, body = request.match_info["path"], await request.json()
        self.asked.append((path, body))
        if path == "register-env":
            if not self.trainer:
                self.trainer = True
                return web.json_response({"status": "wait for trainer to start"})
            return web.json_response({"status": "success", "env_id": 7})
        return web.json_response({"status": "success"})


async def test_atropos_is_sent_groups_of_this_environment(server, aiohttp_server, monkeypatch):
    monkeypatch.setattr("rolltap_plugins.trainers.atropos._POLL_S", 0.01)
    atropos = Atropos()
    url = str((await aiohttp_server(atropos.app)).make_url("/"))
    async with AsyncClient(server.url) as client:
        async with AtroposEnvironment(url, client, name="talk", group_size=2) as environment:
            assert (await environment.register())["env_id"] == 7
            groups = [await play_group(client, agent, task, n=2, group=task) for task in ("Hi.", "Bye.")]
            await environment.send(*groups)
            await environment.send(await client.create(group="nothing said"))
        paths = [path for path, _ in atropos.asked]
        assert paths == ["register-env", "register-env", "scored_data_list", "disconnect-env"]
        registration, sent = atropos.asked[1][1], atropos.asked[2][1]
        assert (registration["desired_name"], registration["group_size"]) == ("talk", 2)
        assert [group["env_id"] for group in sent] == [7, 7]
        assert [group["scores"] for group in sent] == [[3.0, 3.0], [4.0, 4.0]]
        for group, sessions in zip(sent, groups, strict=True):
            nodes = [node for session in sessions for node in await server.nodes(session.uuid)]
            assert group["tokens"] == [node["tokens"] for node in nodes]
            assert group["masks"] == [node["masked_tokens"] for node in nodes]
            assert group["inference_logprobs"] == [node["logprobs"] for node in nodes]
            assert [message["role"] for message in group["messages"][0]] == ["user", "assistant"]


async def test_an_answer_of_atropos_that_is_an_error_is_told(aiohttp_server, server):
    async def refuse(request):
        return web.Response(status=422, text="no such field")

    app = web.Application()
    app.router.add_post("/register-env", refuse)
    url = str((await aiohttp_server(app)).make_url("/"))
    async with (
        AsyncClient(server.url) as client,
        AtroposEnvironment(url, client, name="talk", group_size=2) as environment,
    ):
        with pytest.raises(RuntimeError, match="register-env answered 422: no such field"):
            await environment.register()
