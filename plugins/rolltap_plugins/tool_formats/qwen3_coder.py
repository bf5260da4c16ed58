"""Qwen3-Coder's XML: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from rolltap import ToolCall, ToolParser, hookimpl
from rolltap_plugins.tool_formats.elements import ElementToolParser

_NAME = re.compile(r"\s*([^\s<>]+)>\s*")
_KEY = re.compile(r"\s*([^\s<>]+)>\n?")


class Qwen3CoderToolParser(ElementToolParser):
    """Reads function elements, with or without `<tool_call>` around; a parameter's closing mark may be left out."""

    open = "<function="
    close = "</function>"
    group = ("<tool_call>", "</tool_call>")
    inner = ("<parameter=", "</parameter>", "</tool_call>")
    value_open = "<parameter="
    value_close = "</parameter>"
    after_value = ("<parameter=", "</function>", "</tool_call>")
    turn_ends = ("<|im_end|>", "<|endoftext|>")

    def after_close(self) -> tuple[str, ...]:
        """The group's end."""
        return ("</tool_call>",)

    def quotes_call(self, previous: str, before: str, mark: str) -> Literal[-1, 0, 1]:
        """A quoted call is whole: `<tool_call><function=` to `</function></tool_call>`."""
        if before.strip():
            return 0
        if (previous, mark) == ("<tool_call>", "<function="):
            return 1
        return -1 if (previous, mark) == ("</function>", "</tool_call>") else 0

    def read(self, block: str) -> ToolCall | None:
        """The call, where its name and all its parameters are well-formed."""
        name = _NAME.match(block)
        if name is None or not re.match(r"<parameter=|</function>|\Z", block[name.end() :]):
            return None
        values = []
        for _, text in self._values:
            key = _KEY.match(text)
            if key is None:
                return None
            values.append((key[1], text[key.end() :].removesuffix("\n")))
        return self.call(name[1], values)


NAMES = ("qwen3_coder", "qwen3_xml")


@hookimpl
def tool_parser(name: str, tools: list[dict[str, Any]]) -> Callable[[], ToolParser] | None:
    """Answer for the names in `NAMES`."""
    return partial(Qwen3CoderToolParser, tools) if name in NAMES else None


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"tool_parser": list(NAMES)}
