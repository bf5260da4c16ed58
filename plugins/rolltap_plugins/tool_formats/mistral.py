"""Mistral's formats: `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, and since v11 `[TOOL_CALLS]name[ARGS]{…}`."""

from rolltap import ToolCall
from rolltap.parsing import JsonToolParser, arguments_from_json, calls_from_json, mark_pattern

_WORD = r"[^\s\[\]{}]{1,128}+"


class MistralToolParser(JsonToolParser):
    """Reads both formats."""

    open = "[TOOL_CALLS]"
    head_pattern = (
        rf"\s*+(?:{_WORD}\s*+(?:\[CALL_ID\](?:{_WORD})?)?+"
        rf"(?:{mark_pattern('[ARGS]')}|{mark_pattern('[CALL_ID]')})?\s*+)?"
    )
    turn_ends = ("</s>",)
    keep_special_tokens = True

    def begin_call(self, begun: str) -> tuple[ToolCall, int] | None:
        """The call whose name came before; an array of calls is given whole."""
        name = self._name()
        return (ToolCall(name), 0) if name and begun.startswith("{") else None

    def read(self, block: str) -> ToolCall | list[ToolCall] | None:
        """An array of calls, or the arguments of the tool whose name came before."""
        name = self._name()
        if not name:
            return calls_from_json(block)
        arguments = arguments_from_json(block)
        return None if arguments is None else ToolCall(name, arguments)

    def _name(self) -> str:
        return self.head.partition("[")[0].strip()


tool_parser = {"mistral": MistralToolParser}
