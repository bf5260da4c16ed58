"""Llama 3's JSON format: `{"name": …, "parameters": {…}}`, by itself or after `<|python_tag|>`, several with `;`."""

from rolltap.parsing import JsonToolParser


class Llama3JsonToolParser(JsonToolParser):
    """Reads an output that begins with JSON, and JSON after `<|python_tag|>`."""

    open = "<|python_tag|>"
    bare = True
    turn_ends = ("<|eot_id|>", "<|eom_id|>")
    keep_special_tokens = True


NAMES = ("llama3_json", "llama4_json")


tool_parser = dict.fromkeys(NAMES, Llama3JsonToolParser)
