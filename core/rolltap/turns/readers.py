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
    tokenizer = model.renderer.tokenizer if model.renderer is not None else None
    found = await plugins.call_first("tool_parser", name=name, tools=request.tools, tokenizer=tokenizer)
    if found is None:
        raise _unknown("tool_parser", name)
    parser = _made(found)
    if not isinstance(parser, ToolParser):
        raise _wrong("tool_parser", name, parser)
    return parser


async def _reasoning_parser(plugins: Plugins, request: ChatRequest, model: Model) -> ReasoningParser | None:
    name = model.config.reasoning_parser
    if not name or request.prompt is not None:
        return None
    tokenizer = model.renderer.tokenizer if model.renderer is not None else None
    found = await plugins.call_first("reasoning_parser", name=name, tokenizer=tokenizer)
    if found is None:
        raise _unknown("reasoning_parser", name)
    parser = _made(found)
    if not isinstance(parser, ReasoningParser):
        raise _wrong("reasoning_parser", name, parser)
    return parser


def _made(found: Any) -> Any:
    """A hook's answer as an instance: it may be one already, or a class or another callable that makes one."""
    return found() if callable(found) and not isinstance(found, ToolParser | ReasoningParser) else found


def _unknown(kind: str, name: str) -> BadRequest:
    return BadRequest(
        f"no plugin offers the {kind} {name!r}; `rolltap plugins` shows what is loaded", param=kind
    )


def _wrong(kind: str, name: str, made: object) -> PluginError:
    return PluginError(f"the plugin for the {kind} {name!r} made a {type(made).__name__}, which is none")
