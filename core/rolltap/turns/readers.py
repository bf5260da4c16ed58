"""The parsers of a request: one reader for each choice, made by the plugins that know the formats."""

from typing import Any, NamedTuple

from rolltap.bases.parsing import ReasoningParser, ToolParser
from rolltap.errors import BadRequest, PluginError
from rolltap.models import Model
from rolltap.plugins import Plugins
from rolltap.reading import OutputReader
from rolltap.types.chat import ChatRequest
from rolltap.types.record import SessionInfo


class Readers(NamedTuple):
    """The readers of one request."""

    choices: list[OutputReader]
    show_special_tokens: bool
    """Whether the text must show the tokenizer's special tokens, because a format's marks are among them."""


async def readers_for(
    plugins: Plugins,
    request: ChatRequest,
    session: SessionInfo | None,
    model: Model,
    *,
    prompt_tail: str = "",
) -> Readers:
    """A reader for each choice of the request. Raises `BadRequest` for a parser that no plugin offers."""
    made = []
    show_special = False
    for _ in range(request.sampling.n):
        tools = await _tool_parser(plugins, request, session, model)
        thinking = await _reasoning_parser(plugins, request, model)
        show_special = any(parser.keep_special_tokens for parser in (tools, thinking) if parser is not None)
        made.append(
            OutputReader(
                tool_parser=tools,
                reasoning_parser=thinking,
                tool_choice=request.tool_choice,
                prompt_tail=prompt_tail,
            )
        )
    return Readers(made, show_special)


async def _tool_parser(
    plugins: Plugins, request: ChatRequest, session: SessionInfo | None, model: Model
) -> ToolParser | None:
    name = session.tool_parser if session is not None else model.config.tool_parser
    if not request.tools or request.tool_choice.mode == "none" or not name or request.prompt is not None:
        return None
    parser: ToolParser = await _parser(plugins, ToolParser, "tool_parser", name, model, tools=request.tools)
    return parser


async def _reasoning_parser(plugins: Plugins, request: ChatRequest, model: Model) -> ReasoningParser | None:
    name = model.config.reasoning_parser
    if not name or request.prompt is not None:
        return None
    parser: ReasoningParser = await _parser(plugins, ReasoningParser, "reasoning_parser", name, model)
    return parser


async def _parser(plugins: Plugins, base: type[Any], hook: str, name: str, model: Model, **asked: Any) -> Any:
    """A hook's answer as an instance: it may be one already, or a class or another callable that makes one."""
    tokenizer = model.renderer.tokenizer if model.renderer is not None else None
    found = await plugins.call_first(hook, name=name, tokenizer=tokenizer, **asked)
    if found is None:
        raise BadRequest(
            f"no plugin offers the {hook} {name!r}; `rolltap plugins` shows what is loaded", param=hook
        )
    parser = found() if callable(found) and not isinstance(found, base) else found
    if not isinstance(parser, base):
        raise PluginError(f"the plugin for the {hook} {name!r} made a {type(parser).__name__}, which is none")
    return parser
