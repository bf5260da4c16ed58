"""Every hook of rolltap: what it is for, what it is given, what it returns, when it is asked.

Mark an implementation with `@rolltap.hookimpl`; take only the arguments you need. `None` means "not mine": the next
plugin is asked. Plugins from outside are asked before the built-in ones, and pluggy's `tryfirst` and `trylast` work.
A hook may be a plain function or a coroutine function, except `register_routes`, which is called before the loop runs.
An exception ends the request (or the start) with an error that names the plugin; it never harms a session.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pluggy
from aiohttp import web

from rolltap.bases.backends import Backend, BackendHandle
from rolltap.bases.converters import MessageConverter
from rolltap.bases.parsing import ReasoningParser, ToolParser
from rolltap.bases.stores import Store
from rolltap.errors import ErrorInfo
from rolltap.types.chat import ChatRequest
from rolltap.types.record import NodeView, SessionInfo

PROJECT = "rolltap"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def tool_parser(
    name: str, tools: list[dict[str, Any]], tokenizer: Any
) -> Callable[[], ToolParser] | ToolParser | None:
    """A parser for the tool calls in a model's text.

    Asked: for a request with tools, unless its `tool_choice` is "none". First answer wins.

    :param name: the parser's name, from the session or the model's `tool_parser`.
    :param tools: the request's tools, in OpenAI's shape.
    :param tokenizer: the model's tokenizer (transformers'), or None where the model has none.
    :returns: the parser's class (or any callable without arguments): called once for each completion. Or an
        instance, which then reads one completion alone; the hook is asked again for the next.
    """


@hookspec
def reasoning_parser(name: str, tokenizer: Any) -> Callable[[], ReasoningParser] | ReasoningParser | None:
    """A parser that splits a model's thinking from its answer.

    Asked: at start and for each request of a model that names a `reasoning_parser`. First answer wins.

    :param name: the parser's name, from the model's `reasoning_parser`.
    :param tokenizer: the model's tokenizer, or None where the model has none.
    :returns: as for `tool_parser`.
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
    """


@hookspec
def message_converter(dialect: str) -> MessageConverter | None:
    """A converter between a wire format and rolltap's own types.

    Asked: once for each dialect, when its first request comes or its route is added. First answer wins.

    :param dialect: such as "openai.chat", "openai.completions", "anthropic.messages".
    """


@hookspec
def select_backend(
    request: ChatRequest, session: SessionInfo | None, backends: Sequence[BackendHandle]
) -> BackendHandle | None:
    """Choose one of a model's backends.

    Asked: for each request. First answer wins.

    :param request: the request.
    :param session: the session it belongs to; None for a session-less request.
    :param backends: the candidates, at least one. A session's pinned `base_url` has already been applied, and
        those that failed for this request are left out.
    :returns: one of `backends`.
    """


@hookspec
def record_node(session: SessionInfo, node: NodeView) -> None:
    """Be told of a node that was recorded.

    Asked: for each finished completion of a session, after it is stored and before the last byte goes to the
    client. Every plugin is asked; a failure is logged and counted, and the request goes on.

    :param session: the session.
    :param node: the node; its sequences are put together when you ask for them.
    """


@hookspec
def classify_error(error: BaseException, backend: BackendHandle | None) -> ErrorInfo | None:
    """Say what an exception means to a client.

    Asked: for each exception that ends a request and is not one of rolltap's own. First answer wins.

    :param error: the exception.
    :param backend: the backend that was being asked, if one was.
    """


@hookspec
def create_store(kind: str, options: dict[str, Any]) -> Store | None:
    """A store for sessions' logs, made from the config's `[store]`.

    Asked: at start. First answer wins; none at all ends the start.

    :param kind: the table's `kind`.
    :param options: the rest of the table.
    """


@hookspec
def register_routes(app: web.Application) -> None:
    """Add routes of your own to the server.

    Asked: at start, when the core's own routes are there. Every plugin is asked. Not a coroutine function.

    :param app: the application; `rolltap.add_dialect(app, dialect, path)` adds a wire format's route.
    """
