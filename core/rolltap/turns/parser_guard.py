"""Parsers, guarded: what one does wrong is an error that names its plugin, and no fault of the backend."""

from collections.abc import Sequence
from typing import TypeVar

from rolltap.bases.parsers import Reasoning, ReasoningParser, ToolParser
from rolltap.errors import RolltapError, failure
from rolltap.types.chat import ToolCall

_FAILURES = (Exception, SystemExit, KeyboardInterrupt)
"""What a plugin's code may raise without ending the server."""

Pieces = TypeVar("Pieces", bound=Sequence[object])


class GuardedToolParser(ToolParser):
    """A tool parser and the name of its plugin."""

    def __init__(self, parser: ToolParser, plugin: str) -> None:
        self._parser = parser
        self._plugin = plugin

    @property
    def call_marks(self) -> tuple[str, ...]:
        """See `ToolParser.call_marks`."""
        return self._parser.call_marks

    def feed(self, text: str) -> Sequence[str | ToolCall]:
        """See `ToolParser.feed`."""
        try:
            return _checked(self._parser.feed(text), str, ToolCall)
        except _FAILURES as error:
            raise _named(error, self._plugin, self._parser, "feed") from error

    def finish(self) -> Sequence[str | ToolCall]:
        """See `ToolParser.finish`."""
        try:
            return _checked(self._parser.finish(), str, ToolCall)
        except _FAILURES as error:
            raise _named(error, self._plugin, self._parser, "finish") from error


class GuardedReasoningParser(ReasoningParser):
    """A reasoning parser and the name of its plugin."""

    def __init__(self, parser: ReasoningParser, plugin: str) -> None:
        self._parser = parser
        self._plugin = plugin

    def begin(self, prompt_tail: str) -> None:
        """See `ReasoningParser.begin`."""
        self._parser.call_marks = self.call_marks
        try:
            self._parser.begin(prompt_tail)
        except _FAILURES as error:
            raise _named(error, self._plugin, self._parser, "begin") from error

    def feed(self, text: str) -> Sequence[str | Reasoning]:
        """See `ReasoningParser.feed`."""
        try:
            return _checked(self._parser.feed(text), str, Reasoning)
        except _FAILURES as error:
            raise _named(error, self._plugin, self._parser, "feed") from error

    def finish(self) -> Sequence[str | Reasoning]:
        """See `ReasoningParser.finish`."""
        try:
            return _checked(self._parser.finish(), str, Reasoning)
        except _FAILURES as error:
            raise _named(error, self._plugin, self._parser, "finish") from error


def _checked(pieces: Pieces, text: type, other: type) -> Pieces:
    if type(pieces) is not list and not isinstance(pieces, Sequence):
        raise TypeError(f"it returned a value of type {type(pieces).__name__}; it must return a list")
    for piece in pieces:
        if type(piece) is not text and not isinstance(piece, text | other):
            raise TypeError(
                f"it gave a value of type {type(piece).__name__}; its list may hold str and {other.__name__}"
            )
        if isinstance(piece, ToolCall):
            _check_call(piece)
    return pieces


def _check_call(call: ToolCall) -> None:
    for name in ("name", "arguments", "id"):
        value: object = getattr(call, name)
        if not isinstance(value, str):
            raise TypeError(
                f"it gave a ToolCall whose {name} is a value of type {type(value).__name__}; it must be str "
                "(arguments: a JSON text)"
            )


def _named(error: BaseException, plugin: str, parser: object, method: str) -> Exception:
    if isinstance(error, RolltapError):
        return error
    return failure(plugin, f"{type(parser).__name__}.{method} failed: {type(error).__name__}: {error}")
