"""GLM 4.5's format: `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>…</tool_call>`."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from rolltap import ToolCall, ToolParser, hookimpl
from rolltap_plugins.tool_formats.elements import ElementToolParser

_NAME = re.compile(r"\s*([\w.\-]+)\s*(?:<arg_key>|\Z)")


class Glm45ToolParser(ElementToolParser):
    """Reads a name and pairs of key and value; strings stand there as they are, all else as JSON."""

    open = "<tool_call>"
    close = "</tool_call>"
    inner = ("<arg_key>", "<arg_value>", "</arg_value>")
    value_open = "<arg_value>"
    value_close = "</arg_value>"
    after_value = ("<arg_key>", "</tool_call>")
    untyped = "json"
    turn_ends = ("<|user|>", "<|observation|>", "<|endoftext|>")

    def quotes_call(self, previous: str, before: str, mark: str) -> Literal[-1, 0, 1]:
        """A quoted call is a mark, a name and a key, up to the closing mark right after a value."""
        if (previous, mark) == ("<tool_call>", "<arg_key>") and len(before.split()) == 1:
            return 1
        return -1 if (previous, mark) == ("</arg_value>", "</tool_call>") and not before.strip() else 0

    def read(self, block: str) -> ToolCall | None:
        """The call, where its name and all its keys are well-formed."""
        name = _NAME.match(block)
        if name is None:
            return None
        values = []
        for before, value in self._values:
            key, closed, rest = before.partition("</arg_key>")
            if not closed or not key.strip() or rest.strip():
                return None
            values.append((key.strip(), value))
        return self.call(name[1], values)


NAMES = ("glm45", "glm47")


@hookimpl
def tool_parser(name: str, tools: list[dict[str, Any]]) -> Callable[[], ToolParser] | None:
    """Answer for the names in `NAMES`."""
    return partial(Glm45ToolParser, tools) if name in NAMES else None


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"tool_parser": list(NAMES)}
