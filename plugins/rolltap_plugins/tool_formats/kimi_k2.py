"""Kimi K2's format: a section of calls, each an id such as `functions.name:0` and JSON between special tokens."""

import re

from rolltap import ToolCall
from rolltap.parsing import JsonToolParser, arguments_from_json, mark_pattern

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

    def begin_call(self, begun: str) -> tuple[ToolCall, int] | None:
        """The call that the head names; the block is its arguments."""
        call = self._named()
        return (call, 0) if call is not None and begun.startswith("{") else None

    def read(self, block: str) -> ToolCall | None:
        """The arguments of the tool that the id names; the call keeps the model's id, which its template shows again."""
        call, arguments = self._named(), arguments_from_json(block)
        return None if call is None or arguments is None else ToolCall(call.name, arguments, call.id)

    def _named(self) -> ToolCall | None:
        """The call that the head names, without its arguments."""
        identity, separator, _ = self.head.partition(_SEPARATOR)
        found = _ID.fullmatch(identity.strip())
        if not separator or found is None:
            return None
        return ToolCall(found["name"], id=identity.strip() if ":" in identity else "")


tool_parser = {"kimi_k2": KimiK2ToolParser}
