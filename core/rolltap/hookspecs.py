"""Every hook of rolltap: what it is for, what it is given, what it returns, when it is asked.

Mark an implementation with `@rolltap.hookimpl`; take only the arguments you need. `None` means "not mine": the next
plugin is asked. Plugins from outside are asked before the built-in ones, and pluggy's `tryfirst` and `trylast` work.
A hook that is asked by a name may be a mapping in place of a function, `{name: class}`: what stands there is the answer,
or, where the hook answers with an instance, is called with those of the hook's other arguments that it takes.
A hook may be a plain function or a coroutine function, except where it says otherwise. An exception, an answer of a
type that is not allowed, or none within `[plugins] time_limit_s` ends the request (or the start) with an error that
names the plugin; it never harms a session.

Each example is a whole plugin: save it as a file in a folder, and `rolltap serve --plugins-dir FOLDER` loads it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import pluggy
from aiohttp import web

from rolltap.bases.backends import Backend, BackendView
from rolltap.bases.converters import MessageConverter
from rolltap.bases.exports import ExportFormat
from rolltap.bases.parsers import ReasoningParser, ToolParser
from rolltap.bases.server import Server
from rolltap.bases.stores import Store
from rolltap.errors import ErrorInfo
from rolltap.types.chat import ChatRequest
from rolltap.types.ledger import SessionInfo
from rolltap.types.nodes import NodeView, TreeView

PROJECT = "rolltap"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def tool_parser(
    name: str, tools: list[dict[str, Any]], tokenizer: Any
) -> Callable[[], ToolParser] | ToolParser | None:
    """A parser for the tool calls in a model's text.

    Asked: for a chat with tools, unless its `tool_choice` is "none"; and with no tools at start and when a session is
    created, to see whether anybody knows the name. First answer wins.

    :param name: the parser's name, from the session or the model's `tool_parser`.
    :param tools: the request's tools, in OpenAI's shape.
    :param tokenizer: the model's tokenizer (transformers'), or None where the model has none.
    :returns: the parser's class (or any callable without arguments): called once for each completion. Or an
        instance, which then reads one completion alone; the hook is asked again for the next.

    Example: calls such as `<call>{"name": "search", "arguments": {"query": "rolltap"}}</call>`::

        import rolltap


        class AngleParser(rolltap.TagToolParser):
            open, close = "<call>", "</call>"


        tool_parser = {"angle": AngleParser}
    """


@hookspec
def reasoning_parser(name: str, tokenizer: Any) -> Callable[[], ReasoningParser] | ReasoningParser | None:
    """A parser that splits a model's thinking from its answer.

    Asked: at start and for each request of a model that names a `reasoning_parser`. First answer wins.

    :param name: the parser's name, from the model's `reasoning_parser`.
    :param tokenizer: the model's tokenizer, or None where the model has none.
    :returns: as for `tool_parser`.

    Example: thinking that stands between `<plan>` and `</plan>`::

        import rolltap


        class PlanParser(rolltap.TagReasoningParser):
            open, close = "<plan>", "</plan>"


        reasoning_parser = {"plan": PlanParser}
    """


@hookspec
def create_backend(kind: str, options: dict[str, Any], model: str) -> Backend | None:
    """A backend, made from its table in the config.

    Asked: at start, for each backend of each model. First answer wins; none at all ends the start.

    :param kind: the table's `kind`.
    :param options: the rest of the table: whatever options the plugin understands. Raise `rolltap.ConfigError` for
        one that is wrong or unknown.
    :param model: the model's name, as clients send it.
    :returns: a `TokenBackend` or a `ChatBackend`.

    Example: `backends = [{ kind = "parrot" }]` repeats the last message::

        import rolltap


        class Parrot(rolltap.ChatBackend):
            async def chat(self, request):
                for word in request.messages[-1].text.split():
                    yield rolltap.ChatDelta(text=word + " ")
                yield rolltap.ChatDelta(finish_reason="stop")


        create_backend = {"parrot": Parrot}
    """


@hookspec
def message_converter(dialect: str) -> MessageConverter | None:
    r"""A converter between a wire format and rolltap's own types.

    Asked: once for each dialect, when its first request comes or its route is added. First answer wins.

    :param dialect: such as "openai.chat", "openai.completions", "anthropic.messages".

    Example: `POST /v1/plain` takes `{"text": …}` and answers in kind, streamed or not::

        import json

        import rolltap


        class PlainStream(rolltap.StreamEncoder):
            def start(self):
                return b""

            def delta(self, delta):
                return b"data: " + json.dumps(delta.text).encode() + b"\n\n" if delta.text else b""

            def finish(self, completion):
                return b"data: null\n\n"

            def error(self, info):
                return b"data: " + json.dumps({"error": info.message}).encode() + b"\n\n"


        class Plain(rolltap.MessageConverter):
            dialect = "plain"

            def decode(self, body):
                if not isinstance(body.get("text"), str):
                    raise rolltap.BadRequest("text must be a string", param="text")
                said = rolltap.Message(role="user", content=body["text"])
                return rolltap.ChatRequest(messages=[said], stream=bool(body.get("stream")))

            def encode(self, request, completion):
                return {"text": completion.choices[0].text}

            def stream(self, request, completion):
                return PlainStream()

            def error(self, info, request_id):
                return rolltap.ErrorReply(status=info.status, body={"error": info.message})


        message_converter = {"plain": Plain}


        @rolltap.hookimpl
        def register_routes(app):
            rolltap.add_dialect(app, "plain", "/v1/plain")
    """


@hookspec
def select_backend(
    request: ChatRequest, session: SessionInfo | None, backends: Sequence[BackendView]
) -> BackendView | None:
    """Choose one of a model's backends.

    Asked: for each request. First answer wins.

    :param request: the request.
    :param session: the session it belongs to; None for a session-less request.
    :param backends: the candidates, at least one. A session's pinned `base_url` has already been applied, and
        those that failed for this request are left out.
    :returns: one of `backends`.

    Example: long conversations go to the last backend in the config::

        import rolltap


        @rolltap.hookimpl
        def select_backend(request, backends):
            return backends[-1] if len(request.messages) > 20 and backends[-1].healthy else None
    """


@hookspec
def record_node(session: SessionInfo, node: NodeView) -> None:
    """Be told of a node that was recorded.

    Asked: for each finished completion of a session, after it is stored and before the last byte goes to the
    client. Every plugin is asked; a failure is logged and counted, and the request goes on.

    :param session: the session.
    :param node: the node; its sequences are put together when you ask for them.

    Example: a log line for each node that can be trained on::

        import logging

        import rolltap

        log = logging.getLogger(__name__)


        @rolltap.hookimpl
        def record_node(session, node):
            if node.metadata["trainable"]:
                log.warning("session %s: node %s, %d tokens", session.uuid, node.node_id, len(node.tokens))
    """


@hookspec
def classify_error(error: BaseException, backend: BackendView | None) -> ErrorInfo | None:
    """Say what an exception means to a client.

    Asked: for each exception that ends a request and is not one of rolltap's own. First answer wins.

    :param error: the exception.
    :param backend: the backend that was being asked, if one was.

    Example: a provider's own exception, known by its name, so that its SDK need not be imported::

        import rolltap


        @rolltap.hookimpl
        def classify_error(error):
            if type(error).__name__ == "ModelLoading":
                return rolltap.ErrorInfo(status=503, code="loading", message=str(error), retry_after=10)
    """


@hookspec
def create_store(kind: str, options: dict[str, Any]) -> Store | None:
    """A store for sessions' logs, made from the config's `[store]`. `rolltap.testing.StoreConformance` tests one.

    Asked: at start. First answer wins; none at all ends the start.

    :param kind: the table's `kind`.
    :param options: the rest of the table.

    Example: `[store] kind = "lists"`, gone with the process::

        import rolltap
        from rolltap.record import SessionCreated


        class Lists(rolltap.Store):
            def __init__(self):
                self.logs, self.created = {}, 0

            async def append(self, session, entry):
                if session not in self.logs:
                    if not isinstance(entry, SessionCreated):
                        raise LookupError(session)
                    self.created += 1
                    self.logs[session] = (self.created, [])
                log = self.logs[session][1]
                log.append(entry)
                return len(log)

            async def read(self, session, after=0):
                _, log = self.logs.get(session, (0, []))
                return list(enumerate(log, 1))[after:]

            async def sessions(self, *, after=0, limit=1000):
                pairs = [(number, name) for name, (number, _) in self.logs.items()]
                return [pair for pair in pairs if pair[0] > after][:limit]

            async def delete(self, session):
                self.logs.pop(session, None)


        create_store = {"lists": Lists}
    """


@hookspec
def export_format(name: str) -> ExportFormat | None:
    """A shape that recorded nodes are exported in, for a trainer.

    Asked: for each export. First answer wins; none at all is a 400.

    :param name: the format's name, such as "jsonl" or "trl".
    :returns: a new format, which belongs to this export alone.

    Example: `?format=pairs`, a prompt and an answer for each leaf::

        import rolltap


        class Pairs(rolltap.ExportFormat):
            name = "pairs"

            def rows(self, session, nodes):
                for node in nodes:
                    cut, tokens = node.packed.response_start, node.tokens
                    yield {"prompt": tokens[:cut], "answer": tokens[cut:]}


        export_format = {"pairs": Pairs}
    """


@hookspec
def label_tree(tree: TreeView, session: SessionInfo) -> str | None:
    """Say in a word what a tree of a session's forest is.

    Asked: when nodes are read, once for each tree. First answer wins. Nodes have it as `lineage`, and exports select by it.

    :param tree: how the tree began.
    :param session: the session.
    :returns: such as "main", "sub-agent", "title", "compaction", "other".

    Example: trees that were offered no tools are drafts::

        import rolltap


        @rolltap.hookimpl
        def label_tree(tree):
            return None if tree.tools else "draft"
    """


@hookspec
def register_commands(cli: click.Group) -> None:
    """Add commands of your own to the command `rolltap`.

    Asked: when a command is called that rolltap does not have, and for `rolltap --help`. Every plugin is asked. Not a
    coroutine function.

    :param cli: the group of commands; `@cli.command()` adds one.

    Example: `rolltap hello`::

        import click

        import rolltap


        @rolltap.hookimpl
        def register_commands(cli):
            @cli.command(help="Greet.")
            def hello():
                click.echo("Hello.")
    """


@hookspec
def register_routes(app: web.Application, server: Server) -> None:
    """Add routes of your own to the server.

    Asked: at start, when the core's own routes are there. Every plugin is asked. Not a coroutine function: it is
    called before the loop runs.

    :param app: the application; `rolltap.add_dialect(app, dialect, path)` adds a wire format's route.
    :param server: what the running server lets plugins see; `server.add_route(…, public=True)` adds a route that needs
        no key. All others need one of the server's keys, where it has some.

    Example: a page of one's own::

        from aiohttp import web

        import rolltap


        async def hello(request):
            return web.Response(text="Hello.")


        @rolltap.hookimpl
        def register_routes(app):
            app.router.add_get("/hello", hello)
    """


@hookspec
def offers() -> Mapping[str, Sequence[str]]:  # type: ignore[empty-body]  # a specification
    """Say which names the plugin answers for, so that people can be told.

    Asked: once, when the plugin is loaded. Every plugin is asked; one that has none need not implement it. Not a
    coroutine function. `rolltap plugins` shows the names and which of them another plugin hides, and a message about
    an unknown name suggests the nearest. It changes nothing in who is asked.

    :returns: for each hook that is asked by a name, kind or dialect, the ones that this plugin answers for.

    Example: a parser under two names::

        import rolltap

        NAMES = ["angle", "angle_v2"]


        class AngleParser(rolltap.TagToolParser):
            open, close = "<call>", "</call>"


        @rolltap.hookimpl
        def tool_parser(name):
            return AngleParser if name in NAMES else None


        @rolltap.hookimpl
        def offers():
            return {"tool_parser": NAMES}
    """
