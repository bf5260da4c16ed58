"""plugins/README.md: its generated parts are what they should be, and its own examples work as they stand."""

import asyncio
import importlib
import inspect
import json
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import ClientError, web
from aiohttp.test_utils import TestServer

from rolltap import ConfigError
from rolltap.config import PluginsConfig
from rolltap.plugins import HOOKS, NAMED_HOOKS, Plugins
from rolltap.testing import ScriptedTokenBackend, assert_every_cut

ROOT = Path(__file__).parents[2]
README = (ROOT / "plugins" / "README.md").read_text(encoding="utf-8")
BY_HAND = README.partition("<!-- hooks")[0]
PARSER, BACKEND, PAGE = re.findall(r"```python\n(.*?)```", BY_HAND, re.DOTALL)
CONFIG, ENGINES = re.findall(r"```toml\n(.*?)```", BY_HAND, re.DOTALL)


def lines(code):
    return [line for line in code.splitlines() if line.strip()]


def test_what_is_generated_is_up_to_date():
    command = [sys.executable, ROOT / ".ci" / "plugin_docs.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_part(hook):
    assert f"\n### {hook}({', '.join(HOOKS[hook])})\n" in README


@pytest.fixture
def mine(tmp_path):
    """A folder with the README's two plugins."""
    (tmp_path / "angle.py").write_text(PARSER)
    (tmp_path / "lines.py").write_text(BACKEND)
    return {"plugins": {"dir": str(tmp_path)}}


@pytest.mark.parametrize("kind", ["vllm", "sglang", "local"])
def test_the_engines_config_is_read_for_each_kind(kind):
    written = ENGINES.replace('kind = "vllm"', f'kind = "{kind}"')
    if kind == "local":
        written = (
            re.sub(r"  (kind|url) = .*\n", "", ENGINES).replace("# kind", "kind").replace("# model", "model")
        )
    (model,) = tomllib.loads(written)["models"]
    (table,) = model["backends"]
    assert table.pop("kind") == kind
    backend = importlib.import_module(f"rolltap_plugins.{kind}").create_backend
    arguments = {"kind": kind, "options": table, "model": model["name"]}
    taken = {name: arguments[name] for name in inspect.signature(backend).parameters}
    assert backend(**taken) is not None


async def test_the_parser_has_ten_lines_and_works(rolltap_serve, rolltap_tokenizer, mine):
    assert len(lines(PARSER)) <= 10
    text = 'Sure. <call>search:{"q": "a b"}</call> <call>broken</call> Done.'
    backend = ScriptedTokenBackend(rolltap_tokenizer, [text])
    server = await rolltap_serve(backend, config=mine, model={"tool_parser": "angle"})
    tools = [{"type": "function", "function": {"name": "search", "parameters": {}}}]
    body = {"messages": [{"role": "user", "content": "a"}], "tools": tools}
    status, answer = await server.post("/v1/chat/completions", body)
    assert status == 200, answer
    message = answer["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("search", '{"q": "a b"}')
    assert "<call>broken</call> Done." in message["content"]


def test_the_parser_reads_the_same_however_the_text_is_cut():
    names = {}
    exec(PARSER, names)
    read = assert_every_cut(
        names["Angle"], 'Sure. <call>search:{"q": "</b>"}</call> <call>broken</call> Done.'
    )
    assert [type(piece).__name__ for piece in read] == ["str", "ToolCall", "str"]


async def test_the_backend_has_fifteen_lines_and_works(rolltap_serve, mine):
    assert len(lines(BACKEND)) <= 15

    async def upstream(request):
        return web.Response(text=f"You said: {await request.text()}\nNo more.")

    app = web.Application()
    app.router.add_post("/", upstream)
    async with TestServer(app) as other:
        config = tomllib.loads(CONFIG)
        (model,) = config["models"]
        assert config["plugins"] == {"dir": "mine"}
        model["backends"][0]["url"] = str(other.make_url("/"))
        server = await rolltap_serve(config={**mine, "models": [model]})
        status, answer = await server.post(
            "/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
        )
        assert status == 200, answer
        assert answer["content"] == [{"type": "text", "text": "You said: Hi\nNo more."}]


KEY = {"headers": {"x-api-key": "secret"}}


class TestPage:
    """The README's page, behind the server's keys."""

    @pytest.fixture
    async def server(self, rolltap_serve, rolltap_tokenizer, tmp_path):
        (tmp_path / "page.py").write_text(PAGE)
        config = {"plugins": {"dir": str(tmp_path)}, "server": {"api_keys": ["secret"]}}
        backend = ScriptedTokenBackend(rolltap_tokenizer, lambda ids, sampling: "Hi.")
        return await rolltap_serve(backend, config=config)

    async def get(self, server, path, **options):
        async with server.http.get(path, **options) as got:
            return got.status, await got.json()

    async def session(self, server):
        async with server.http.post("/sessions/create", json={"group": "g"}, **KEY) as got:
            return (await got.json())["uuid"]

    async def test_it_lists_sessions_and_shows_nodes(self, server):
        assert len(lines(PAGE)) <= 60
        session = await self.session(server)
        body = {"messages": [{"role": "user", "content": "a"}]}
        assert (await server.post(f"/{session}/v1/chat/completions", body))[0] == 200
        status, (listed,) = await self.get(server, "/watch/sessions?group=g", **KEY)
        assert (status, listed["id"], listed["nodes"]) == (200, session, 1)
        assert await self.get(server, f"/watch/sessions?after={listed['next']}", **KEY) == (200, [])
        (recorded,) = await server.nodes(session)
        path = f"/watch/{session}/nodes/{recorded['metadata']['node_id']}"
        status, shown = await self.get(server, path, **KEY)
        assert (status, shown["num_tokens"], shown["reward"]) == (200, len(recorded["tokens"]), None)
        assert shown["messages"] == [*body["messages"], {"role": "assistant", "content": "Hi."}]
        assert shown["text"] == recorded["full_text"]
        for missing in (f"/watch/{session}/nodes/none", "/watch/nowhere/nodes/none"):
            assert (await self.get(server, missing, **KEY))[0] == 404

    async def test_it_streams_what_is_recorded_and_ends_with_the_server(self, server):
        session = await self.session(server)
        async with server.http.get(f"/watch/events?session={session}", **KEY) as got:
            body = {"messages": [{"role": "user", "content": "a"}]}
            await server.post(f"/{session}/v1/chat/completions", body)
            await server.post(f"/{session}/reward", {"value": 1})
            frames = [(await got.content.readuntil(b"\n\n")).decode() for _ in range(2)]
            told = [json.loads(frame.removeprefix("data: ")) for frame in frames]
            assert [each["entry"] for each in told] == ["CallRecorded", "RewardGiven"]
            (recorded,) = await server.nodes(session)
            assert told[0]["nodes"] == [recorded["metadata"]["node_id"]]
            assert {each["session"] for each in told} == {session}
            async with asyncio.timeout(5):
                await server.app.shutdown()
                with suppress(ClientError):
                    assert await got.content.read() == b""
                assert got.content.at_eof() or got.content.exception() is not None

    @pytest.mark.parametrize("path", ["sessions", "s/nodes/n", "events"])
    async def test_all_but_its_public_page_need_a_key(self, server, path):
        status, body = await self.get(server, f"/watch/{path}")
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        assert await self.get(server, "/watch") == (200, {"models": ["test-model"], "sessions": 0})


# What vLLM's parsers answer for depends on the vLLM that is installed, and has tests of its own.
PLUGINS = Plugins.load(PluginsConfig(disable=["vllm-parsers"]))
OFFERED = [
    (record.name, hook, name)
    for record in PLUGINS.records
    for hook, names in record.offers.items()
    for name in names
]
ARGUMENTS = {"tools": [], "tokenizer": None, "options": {}, "model": "m"}


@pytest.mark.parametrize(("plugin", "hook", "name"), OFFERED)
async def test_a_built_in_plugin_answers_for_what_it_offers(plugin, hook, name):
    """A backend's options may be wanting: then it says so, which is an answer too."""
    others = [record.name for record in PLUGINS.records if record.name != plugin]
    alone = Plugins.load(PluginsConfig(disable=others))
    (asked_by,) = {"name", "kind", "dialect"} & set(HOOKS[hook])
    arguments = {asked_by: name, **{key: ARGUMENTS[key] for key in HOOKS[hook] if key != asked_by}}
    answer, refusal = None, ""
    try:
        answer = await alone.ask(hook, **arguments)
    except ConfigError as error:
        refusal = str(error)
    assert answer is not None or (hook == "create_backend" and name in refusal)


def test_every_built_in_plugin_that_is_asked_by_name_says_what_it_offers():
    for record in PLUGINS.records:
        assert set(record.offers) == set(record.hooks) & NAMED_HOOKS, record.name
