"""The Hermes format, also Qwen's: JSON with a name and arguments between `<tool_call>` and `</tool_call>`."""

from collections.abc import Callable

from rolltap import ToolParser, hookimpl
from rolltap.parsing import JsonToolParser


class HermesToolParser(JsonToolParser):
    """Reads `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

    open = "<tool_call>"
    close = "</tool_call>"
    turn_ends = ("<|im_end|>", "<|endoftext|>")


@hookimpl
def tool_parser(name: str) -> Callable[[], ToolParser] | None:
    """Answer for "hermes"."""
    return HermesToolParser if name == "hermes" else None


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"tool_parser": ["hermes"]}
