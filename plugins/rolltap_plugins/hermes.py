"""The Hermes format, also Qwen's: JSON with a name and arguments between `<tool_call>` and `</tool_call>`."""

from rolltap.parsing import JsonToolParser


class HermesToolParser(JsonToolParser):
    """Reads `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

    open = "<tool_call>"
    close = "</tool_call>"
    turn_ends = ("<|im_end|>", "<|endoftext|>")


tool_parser = {"hermes": HermesToolParser}
