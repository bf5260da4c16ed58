"""The example of every hook, as its documentation has it, is a plugin that does what it says."""

import inspect
import textwrap

import click
import pytest
from click.testing import CliRunner

from rolltap import hookspecs
from rolltap.plugins import HOOKS
from rolltap.server.state import PLUGINS
from rolltap.testing import Reply, ScriptedChatBackend, ScriptedTokenBackend

TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]
USER = {"role": "user", "content": "one two"}
CALL = '<call>{"name": "search", "arguments": {"query": "rolltap"}}</call>'


def example(hook):
    """The code below `Example: …::` in the hook's documentation."""
    title, colons, code = (
        (inspect.getdoc(getattr(hookspecs, hook)) or "").partition("\nExample: ")[2].partition("::\n\n")
    )
    assert title
    assert colons
    return textwrap.dedent(code)


@pytest.fixture
def start(rolltap_serve, tmp_path):
    """Serve with a hook's example as a single-file plugin named `example`."""

    async def start(hook, *backends, store=None, **model):
        (tmp_path / "example.py").write_text(example(hook))
        config = {"plugins": {"dir": str(tmp_path)}, **({"store": {"kind": store}} if store else {})}
        server = await rolltap_serve(*backends, config=config, model=model)
        record = next(each for each in server.app[PLUGINS].records if each.name == "example")
        assert record.state == "loaded", record.error
        assert hook in record.hooks
        return server

    return start


@pytest.fixture
def says(rolltap_tokenizer):
    return lambda *script: ScriptedTokenBackend(rolltap_tokenizer, script)


async def ask(server, session="", messages=(USER,), **body):
    path = f"/{session}/v1/chat/completions" if session else "/v1/chat/completions"
    status, answer = await server.post(path, {"messages": list(messages), **body})
    assert status == 200, answer
    return answer["choices"][0]["message"]


async def tool_parser(start, says, caplog):
    server = await start("tool_parser", says(f"So: {CALL}"), tool_parser="angle")
    message = await ask(server, tools=TOOLS)
    assert message["content"] == "So:"
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "search", "arguments": '{"query": "rolltap"}'}


async def reasoning_parser(start, says, caplog):
    server = await start("reasoning_parser", says("<plan>First.</plan>Done."), reasoning_parser="plan")
    message = await ask(server)
    assert message["content"] == "Done."
    assert "First." in (message.get("reasoning_content"), message.get("reasoning"))


async def create_backend(start, says, caplog):
    server = await start("create_backend", backends=[{"kind": "parrot"}])
    assert (await ask(server))["content"] == "one two "


async def message_converter(start, says, caplog):
    server = await start("message_converter", ScriptedChatBackend(["Hello.", "Hello.", [ValueError("no")]]))
    assert await server.post("/v1/plain", {"text": "Hi"}) == (200, {"text": "Hello."})
    assert await server.post("/v1/plain", {"text": 7}) == (400, {"error": "text must be a string"})
    async with server.http.post("/v1/plain", json={"text": "Hi", "stream": True}) as response:
        assert await response.text() == 'data: "Hello."\n\ndata: null\n\n'
    status, answer = await server.post("/v1/plain", {"text": "Hi"})
    assert (status, "no" in answer["error"]) == (500, True)


async def select_backend(start, says, caplog):
    server = await start("select_backend", ScriptedChatBackend(), ScriptedChatBackend(["Long."] * 3))
    answer = {"role": "assistant", "content": "Yes."}
    for _ in range(3):  # the built-in routing would ask both in turn
        assert (await ask(server, messages=[USER, answer] * 11 + [USER]))["content"] == "Long."


async def record_node(start, says, caplog):
    server = await start("record_node", says("Hello.", Reply(text="Hello.", logprobs=None)))
    session = await server.session(track_tree=True)
    for _ in range(2):
        await ask(server, session)
    good, bad = await server.nodes(session)
    assert (good["metadata"]["trainable"], bad["metadata"]["trainable"]) == (True, False)
    told = [record.getMessage() for record in caplog.records if ".example" in record.name]
    assert told == [f"session {session}: node {good['metadata']['node_id']}, {len(good['tokens'])} tokens"]


async def classify_error(start, says, caplog):
    error = type("ModelLoading", (Exception,), {})("wait a little")
    server = await start("classify_error", ScriptedChatBackend([[error]]))
    async with server.http.post("/v1/chat/completions", json={"messages": [USER]}) as response:
        assert (response.status, response.headers["retry-after"]) == (503, "10")
        assert (await response.json())["error"]["message"] == "wait a little"


async def create_store(start, says, caplog):
    server = await start("create_store", says("Hello.", "Again."), store="lists")
    session = await server.session()
    await ask(server, session)
    assert len(await server.nodes(session)) == 1
    async with server.http.delete(f"/{session}") as response:
        assert response.status == 200


async def export_format(start, says, caplog):
    server = await start("export_format", says("Hello."))
    session = await server.session()
    await ask(server, session)
    (node,) = await server.nodes(session)
    async with server.http.get(f"/{session}/nodes", params={"format": "pairs"}) as response:
        (row,) = (await response.json())["rows"]
    assert row["prompt"] + row["answer"] == node["tokens"]
    assert row["answer"] == [token for token in node["masked_tokens"] if token != -100]


async def label_tree(start, says, caplog):
    server = await start("label_tree", says("Hello.", "Hello."))
    session = await server.session()
    await ask(server, session)
    await ask(server, session, tools=TOOLS)
    labels = [node["metadata"]["lineage"] for node in await server.nodes(session)]
    assert labels == ["draft", "main"]


async def register_commands(start, says, caplog):
    server = await start("register_commands", ScriptedChatBackend())
    cli = click.Group()
    server.app[PLUGINS].call_all_sync("register_commands", cli=cli)
    done = CliRunner().invoke(cli, ["hello"])
    assert (done.exit_code, done.output) == (0, "Hello.\n")


async def register_routes(start, says, caplog):
    server = await start("register_routes", ScriptedChatBackend())
    async with server.http.get("/hello") as response:
        assert await response.text() == "Hello."


async def offers(start, says, caplog):
    server = await start("offers", says(CALL), tool_parser="angle_v2")
    assert server.app[PLUGINS].offered("tool_parser")["angle_v2"] == ["example"]
    assert (await ask(server, tools=TOOLS))["tool_calls"]
    status, answer = await server.post("/sessions/create", {"tool_parser": "angel"})
    assert (status, 'did you mean "angle"?' in answer["error"]["message"]) == (400, True)


SCENARIOS = {
    function.__name__: function
    for function in (
        tool_parser, reasoning_parser, create_backend, message_converter, select_backend, record_node,
        classify_error, create_store, export_format, label_tree, register_commands, register_routes, offers,
    )
}  # fmt: skip


def test_every_hook_has_an_example_and_a_test_of_it():
    assert set(SCENARIOS) == set(HOOKS)


@pytest.mark.parametrize("hook", HOOKS)
async def test_the_example_does_what_it_says(start, says, caplog, hook):
    await SCENARIOS[hook](start, says, caplog)
