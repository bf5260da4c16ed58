"""Llama 3's JSON format: `{"name": …, "parameters": {…}}`, by itself or after `<|python_tag|>`, several with `;`."""

from collections.abc import Callable

from rolltap import JsonToolParser, ToolParser, hookimpl


class Llama3JsonToolParser(JsonToolParser):
    """Reads an output that begins with JSON, and JSON after `<|python_tag|>`."""

    open = "<|python_tag|>"
    bare = True
    turn_ends = ("<|eot_id|>", "<|eom_id|>")
    keep_special_tokens = True


@hookimpl
def tool_parser(name: str) -> Callable[[], ToolParser] | None:
    """Answer for "llama3_json" and "llama4_json"."""
    return Llama3JsonToolParser if name in ("llama3_json", "llama4_json") else None
