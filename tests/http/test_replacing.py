"""For every hook: the built-in plugin is disabled, one from outside takes its place, and a request goes through it."""

from collections import defaultdict

import click
import pytest

import rolltap
from rolltap.plugins import HOOKS
from rolltap.server.state import PLUGINS
from rolltap.testing import ScriptedChatBackend, ScriptedTokenBackend

TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}
PATH = "/v1/chat/completions"


class Parser(rolltap.TagToolParser):
    open, close = "[[", "]]"

    def read(self, block):
        return rolltap.ToolCall(block)


class Thinking(rolltap.TagReasoningParser):
    open, close = "((", "))"


class Backend(rolltap.ChatBackend):
    async def chat(self, request):
        yield rolltap.ChatDelta(text="mine", finish_reason="stop")


class Store(rolltap.Store):
    def __init__(self):
        self.logs = defaultdict(list)

    async def append(self, session, entry):
        self.logs[session].append(entry)
        return len(self.logs[session])

    async def read(self, session, after=0):
        return list(enumerate(self.logs[session], 1))[after:]

    async def sessions(self, *, after=0, limit=1000):
        return list(enumerate(self.logs, 1))[after : after + limit]

    async def delete(self, session):
        self.logs.pop(session, None)


class Encoder(rolltap.StreamEncoder):
    def start(self):
        return b""

    def delta(self, delta):
        return delta.text.encode()

    def finish(self, completion):
        return b""

    def error(self, info):
        return b""


class Converter(rolltap.MessageConverter):
    dialect = "openai.chat"

    def decode(self, body):
        return rolltap.ChatRequest(messages=[rolltap.Message(role="user", content=body["say"])])

    def encode(self, request, completion):
        return {"said": completion.choices[0].text}

    def stream(self, request, completion):
        return Encoder()

    def error(self, info, request_id):
        return rolltap.ErrorReply(status=info.status, body={"sorry": info.message})


class Export(rolltap.ExportFormat):
    name = "jsonl"

    def rows(self, session, nodes):
        yield {"mine": len(nodes)}


class Mine:
    """Answers for what the built-in plugins answer for; a test takes the hook that it is about."""

    def __init__(self):
        self.nodes = []
        self.store = Store()

    def tool_parser(self, name):
        return Parser if name == "hermes" else None

    def reasoning_parser(self, name):
        return Thinking if name == "think" else None

    def create_backend(self, kind):
        return Backend() if kind == "local" else None

    def message_converter(self, dialect):
        return Converter() if dialect == "openai.chat" else None

    def register_routes(self, app):
        rolltap.add_dialect(app, "openai.chat", PATH)

    def select_backend(self, backends):
        return backends[-1]

    def record_node(self, node):
        self.nodes.append(node.node_id)

    def classify_error(self, error):
        return rolltap.ErrorInfo(status=418, message=f"mine: {error}")

    def create_store(self, kind):
        return self.store if kind == "memory" else None

    def export_format(self, name):
        return Export() if name == "jsonl" else None

    def label_tree(self, tree):
        return "mine"

    def register_commands(self, cli):
        cli.add_command(click.Command("mine"))

    def offers(self):
        return {"tool_parser": ["hermes"]}


def only(*hooks):
    """A plugin with these hooks of `Mine` alone."""
    methods = {hook: rolltap.hookimpl(getattr(Mine, hook)) for hook in hooks}
    return type("Only", (), {"__init__": Mine.__init__, **methods})()


@pytest.fixture
def start(rolltap_serve, rolltap_tokenizer):
    async def start(mine, disable, *script, served=None, **model):
        served = [ScriptedTokenBackend(rolltap_tokenizer, script)] if served is None else served
        config = {"plugins": {"disable": disable}}
        return await rolltap_serve(*served, plugins=[mine], config=config, model=model)

    return start


async def answered(server, session="", body=CHAT):
    status, answer = await server.post(f"/{session}{PATH}" if session else PATH, body)
    assert status == 200, answer
    return answer["choices"][0]["message"]


async def tool_parser(start):
    server = await start(only("tool_parser"), ["hermes"], "[[search]]")
    (call,) = (await answered(server))["tool_calls"]
    assert call["function"]["name"] == "search"
    return server, ["hermes"]


async def reasoning_parser(start):
    server = await start(only("reasoning_parser"), ["think"], "((hm)) So.", reasoning_parser="think")
    message = await answered(server)
    assert message["content"].strip() == "So."
    return server, ["think"]


async def create_backend(start):
    server = await start(only("create_backend"), ["local"], served=[], backends=[{"kind": "local"}])
    assert (await answered(server))["content"] == "mine"
    return server, ["local"]


async def message_converter(start):
    mine = only("message_converter", "register_routes")
    server = await start(mine, ["openai-chat"], "Hello.")
    assert await server.post(PATH, {"say": "Hi"}) == (200, {"said": "Hello."})
    return server, ["openai-chat"]


async def select_backend(start):
    backends = [ScriptedChatBackend(), ScriptedChatBackend(["One.", "Two."])]
    server = await start(only("select_backend"), ["routing"], served=backends)
    assert [(await answered(server))["content"] for _ in range(2)] == ["One.", "Two."]
    return server, ["routing"]


async def record_node(start):
    mine = only("record_node")
    server = await start(mine, [], "Hello.")
    session = await server.session()
    await answered(server, session)
    assert mine.nodes == [node["metadata"]["node_id"] for node in await server.nodes(session)]
    return server, []


async def classify_error(start):
    backends = [ScriptedChatBackend([[RuntimeError("no")]])]
    server = await start(only("classify_error"), ["errors"], served=backends)
    status, answer = await server.post(PATH, CHAT)
    assert (status, answer["error"]["message"]) == (418, "mine: no")
    return server, ["errors"]


async def create_store(start):
    mine = only("create_store")
    server = await start(mine, ["memory-store"], "Hello.")
    session = await server.session()
    await answered(server, session)
    assert [type(entry).__name__ for entry in mine.store.logs[session]] == ["SessionCreated", "CallRecorded"]
    return server, ["memory-store"]


async def export_format(start):
    server = await start(only("export_format"), ["exports"], "Hello.")
    session = await server.session()
    await answered(server, session)
    async with server.http.get(f"/{session}/nodes", params={"format": "jsonl"}) as response:
        assert (await response.json())["rows"] == [{"mine": 1}]
    return server, ["exports"]


async def label_tree(start):
    server = await start(only("label_tree"), ["lineage"], "Hello.")
    session = await server.session()
    await answered(server, session)
    (node,) = await server.nodes(session)
    assert node["metadata"]["lineage"] == "mine"
    return server, ["lineage"]


async def register_commands(start):
    server = await start(only("register_commands"), [], "Hello.")
    cli = click.Group()
    server.app[PLUGINS].call_all_sync("register_commands", cli=cli)
    assert "mine" in cli.commands
    return server, []


async def offers(start):
    server = await start(only("tool_parser", "offers"), ["hermes"], "[[search]]")
    assert server.app[PLUGINS].offered("tool_parser")["hermes"] == ["Only"]
    return server, ["hermes"]


async def register_routes(start):
    return await message_converter(start)


SCENARIOS = {
    function.__name__: function
    for function in (
        tool_parser, reasoning_parser, create_backend, message_converter, select_backend, record_node,
        classify_error, create_store, export_format, label_tree, register_commands, offers, register_routes,
    )
}  # fmt: skip


def test_every_hook_has_its_test():
    assert set(SCENARIOS) == set(HOOKS)


@pytest.mark.parametrize("hook", HOOKS)
async def test_a_built_in_plugin_can_be_replaced(start, hook):
    server, replaced = await SCENARIOS[hook](start)
    order = server.app[PLUGINS].order(hook)
    assert order[0] == "Only"
    assert not set(order) & set(replaced)
