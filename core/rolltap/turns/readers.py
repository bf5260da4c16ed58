"""The parsers of a request: one reader for each choice, made by the plugins that know the formats."""

from typing import Any, NamedTuple

from rolltap.bases.parsers import ReasoningParser, ToolParser
from rolltap.errors import BadRequest, failure
from rolltap.models import Model
from rolltap.plugins import Answer, Plugins
from rolltap.reading import OutputReader
from rolltap.turns.parser_guard import GuardedReasoningParser, GuardedToolParser
from rolltap.types.chat import ChatRequest
from rolltap.types.ledger import SessionInfo

_KINDS: dict[str, type] = {"tool_parser": ToolParser, "reasoning_parser": ReasoningParser}


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
    readers = []
    show_special = False
    for _ in range(request.sampling.n):
        tools = await _tool_parser(plugins, request, session, model)
        thinking = await _reasoning_parser(plugins, request, model)
        show_special = any(made.value.keep_special_tokens for made in (tools, thinking) if made is not None)
        readers.append(
            OutputReader(
                tool_parser=GuardedToolParser(tools.value, tools.plugin) if tools else None,
                reasoning_parser=GuardedReasoningParser(thinking.value, thinking.plugin)
                if thinking
                else None,
                tool_choice=request.tool_choice,
                prompt_tail=prompt_tail,
            )
        )
    return Readers(readers, show_special)


async def _tool_parser(
    plugins: Plugins, request: ChatRequest, session: SessionInfo | None, model: Model
) -> Answer | None:
    name = session.tool_parser if session is not None else model.config.tool_parser
    if not request.tools or request.tool_choice.mode == "none" or not name or request.prompt is not None:
        return None
    made = await _made(plugins, "tool_parser", model, name=name, tools=request.tools)
    made.value.stream_arguments = model.config.stream_arguments
    return made


async def _reasoning_parser(plugins: Plugins, request: ChatRequest, model: Model) -> Answer | None:
    name = model.config.reasoning_parser
    if not name or request.prompt is not None:
        return None
    return await _made(plugins, "reasoning_parser", model, name=name)


async def _made(plugins: Plugins, hook: str, model: Model, *, name: str, **arguments: Any) -> Answer:
    """A parser of that name: what the hook answers is one already, or a class or another callable that makes one."""
    tokenizer = model.renderer.tokenizer if model.renderer is not None else None
    found = await plugins.ask(hook, name=name, tokenizer=tokenizer, **arguments)
    if found is None:
        raise BadRequest(
            f"no plugin offers the {hook} {name!r}{plugins.hint(hook, name)}; `rolltap plugins` shows what is loaded",
            param=hook,
        )
    if isinstance(found.value, _KINDS[hook]):
        return found
    try:
        parser = found.value()
    except Exception as error:
        problem = f"its {hook} {name!r} can't be made: {type(error).__name__}: {error}"
        raise failure(found.plugin, problem) from error
    if not isinstance(parser, _KINDS[hook]):
        problem = f"what it gave for the {hook} {name!r} made a value of type {type(parser).__name__}, which is none"
        raise failure(found.plugin, problem)
    return Answer(found.plugin, parser)
