"""Kimi K2's format: a section of calls, each an id such as `functions.name:0` and JSON between special tokens."""

import re
from collections.abc import Callable

from rolltap import JsonToolParser, ToolCall, ToolParser, arguments_from_json, hookimpl, mark_pattern

_SEPARATOR = "<|tool_call_argument_begin|>"
_ID = re.compile(r"(?:functions\.)?(?P<name>.+?)(?::\d+)?")


class KimiK2ToolParser(JsonToolParser):
    """Reads `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`."""

    open = "<|tool_call_begin|>"
    close = "<|tool_call_end|>"
    group = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
    head_pattern = rf"\s*+[^\s<{{}}\[\]]{{0,160}}+\s*+{mark_pattern(_SEPARATOR)}?\s*+"
    turn_ends = ("<|im_end|>",)
    keep_special_tokens = True

    def read(self, block: str) -> ToolCall | None:
        """The arguments of the tool that the id names; the call keeps the model's id, which its template shows again."""
        identity, separator, _ = self.head.partition(_SEPARATOR)
        found = _ID.fullmatch(identity.strip())
        arguments = arguments_from_json(block)
        if not separator or found is None or arguments is None:
            return None
        return ToolCall(found["name"], arguments, identity.strip() if ":" in identity else "")


@hookimpl
def tool_parser(name: str) -> Callable[[], ToolParser] | None:
    """Answer for "kimi_k2"."""
    return KimiK2ToolParser if name == "kimi_k2" else None
