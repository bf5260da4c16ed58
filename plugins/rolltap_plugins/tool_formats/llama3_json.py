"""Llama 3's JSON format: `{"name": …, "parameters": {…}}`, by itself or after `<|python_tag|>`, several with `;`."""

from collections.abc import Callable

from rolltap import ToolParser, hookimpl
from rolltap.parsing import JsonToolParser


class Llama3JsonToolParser(JsonToolParser):
    """Reads an output that begins with JSON, and JSON after `<|python_tag|>`."""

    open = "<|python_tag|>"
    bare = True
    turn_ends = ("<|eot_id|>", "<|eom_id|>")
    keep_special_tokens = True


NAMES = ("llama3_json", "llama4_json")


@hookimpl
def tool_parser(name: str) -> Callable[[], ToolParser] | None:
    """Answer for the names in `NAMES`."""
    return Llama3JsonToolParser if name in NAMES else None


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"tool_parser": list(NAMES)}
