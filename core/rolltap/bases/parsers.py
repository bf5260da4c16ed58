"""What tool parsers and reasoning parsers subclass."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from rolltap.types.chat import ToolCall


class CallFragment(ToolCall, frozen=True):
    """A piece of a call whose arguments are still being written; it can't be taken back.

    The first of a call has its name and its id, the following have more of `arguments` alone, up to the last one of that
    call. Stands wherever a call may, from a parser whose `stream_arguments` is set.
    """

    name: str = ""
    arguments: str = ""


class ToolParser(ABC):
    """Reads the tool calls out of a model's text. One instance reads one completion.

    A whole text is read by one `feed` and a `finish`, a stream by many feeds and a `finish`: the results, joined,
    must be the same however the text was cut.
    """

    keep_special_tokens: ClassVar[bool] = False
    """Whether the text must show the tokenizer's special tokens, because this format's marks are among them."""

    stream_arguments: bool = False
    """Whether calls may be given in fragments while they are written, set before the first `feed`. A parser may give
    whole calls all the same."""

    @property
    def call_marks(self) -> tuple[str, ...]:
        """Marks that a call begins with, where the format has such; a reasoning parser is told of them."""
        return ()

    @abstractmethod
    def feed(self, text: str) -> Sequence[str | ToolCall]:
        """Take the next piece of text; give what is certain now, in order: content and calls."""

    @abstractmethod
    def finish(self) -> Sequence[str | ToolCall]:
        """The text is over: give everything that was held back. Called once, last."""


class Reasoning(Struct, frozen=True):
    """A piece of text that is the model's thinking."""

    text: str


class ReasoningParser(ABC):
    """Splits a model's thinking from its answer. One instance reads one completion."""

    keep_special_tokens: ClassVar[bool] = False

    call_marks: tuple[str, ...] = ()
    """The `call_marks` of the request's tool parser, set before `begin`."""

    def begin(self, prompt_tail: str) -> None:
        """Told how the prompt ends, before the first `feed`: some templates open the thinking themselves."""

    @abstractmethod
    def feed(self, text: str) -> Sequence[str | Reasoning]:
        """Take the next piece of text; give what is certain now, in order: answer and thinking."""

    @abstractmethod
    def finish(self) -> Sequence[str | Reasoning]:
        """The text is over: give everything that was held back. Called once, last."""
