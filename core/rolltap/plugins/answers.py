"""What each hook may answer: a wrong answer is an error that names the plugin, not one deep in the core."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rolltap.bases.backends import BackendView, ChatBackend, TokenBackend
from rolltap.bases.converters import MessageConverter
from rolltap.bases.exports import ExportFormat
from rolltap.bases.parsers import ReasoningParser, ToolParser
from rolltap.bases.stores import Store
from rolltap.errors import ErrorInfo


class Answer(NamedTuple):
    """A hook's answer and the plugin that gave it."""

    plugin: str
    value: Any


def _one_of(*types: type) -> Callable[[object], bool]:
    return lambda answer: isinstance(answer, types)


def _maker(kind: type) -> Callable[[object], bool]:
    def fits(answer: object) -> bool:
        return issubclass(answer, kind) if isinstance(answer, type) else callable(answer)

    return lambda answer: isinstance(answer, kind) or fits(answer)


_ALLOWED: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "tool_parser": (_maker(ToolParser), "a ToolParser's class, an instance, or a callable that makes one"),
    "reasoning_parser": (
        _maker(ReasoningParser),
        "a ReasoningParser's class, an instance, or a callable that makes one",
    ),
    "create_backend": (_one_of(TokenBackend, ChatBackend), "a TokenBackend or a ChatBackend"),
    "message_converter": (_one_of(MessageConverter), "a MessageConverter"),
    "select_backend": (_one_of(BackendView), "one of the backends it was given"),
    "classify_error": (_one_of(ErrorInfo), "an ErrorInfo"),
    "label_tree": (_one_of(str), "a str"),
    "create_store": (_one_of(Store), "a Store"),
    "export_format": (_one_of(ExportFormat), "an ExportFormat"),
}
"""For each hook that is asked for an answer, what fits, and the same in words."""


def wrong(hook: str, answer: object) -> str:
    """What is wrong with an answer that is not None, in words; "" where it fits."""
    fits, words = _ALLOWED[hook]
    if fits(answer):
        return ""
    shown = (
        f"the class {answer.__qualname__}"
        if isinstance(answer, type)
        else f"a value of type {type(answer).__name__}"
    )
    return f"{hook} answered with {shown}; it must be {words}, or None"
