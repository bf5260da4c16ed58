"""DeepSeek's formats: a group of calls, each a name and JSON between special tokens."""

from rolltap import ToolCall, ToolParser
from rolltap.parsing import JsonToolParser, arguments_from_json, mark_pattern

_SEPARATOR = "<｜tool▁sep｜>"  # noqa: RUF001  # the tokens are spelt so
_NAME = r"\s*+[^\s<{}\[\]]{0,128}+\s*+"


class DeepSeekV31ToolParser(JsonToolParser):
    """V3.1 and later: `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`."""  # noqa: RUF002

    open = "<｜tool▁call▁begin｜>"  # noqa: RUF001
    close = "<｜tool▁call▁end｜>"  # noqa: RUF001
    group = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")  # noqa: RUF001
    head_pattern = rf"{_NAME}{mark_pattern(_SEPARATOR)}?\s*+"
    turn_ends = ("<｜end▁of▁sentence｜>",)  # noqa: RUF001
    keep_special_tokens = True

    def begin_call(self, begun: str) -> tuple[ToolCall, int] | None:
        """The call that the head names; the block is its arguments."""
        name = self._name()
        return (ToolCall(name), 0) if name and begun.startswith("{") else None

    def read(self, block: str) -> ToolCall | None:
        """The arguments of the tool that the head names."""
        name, arguments = self._name(), arguments_from_json(block)
        return ToolCall(name, arguments) if name and arguments is not None else None

    def _name(self) -> str:
        """The tool's name; "" where the head has none."""
        name, separator, _ = self.head.partition(_SEPARATOR)
        return name.strip() if separator else ""


class DeepSeekV3ToolParser(DeepSeekV31ToolParser):
    """V3 and R1: a type, the separator, the name on a line of its own, and the JSON in a fence."""

    head_pattern = rf"{_NAME}{mark_pattern(_SEPARATOR)}?{_NAME}(?:`{{1,2}}\Z|```[a-z]{{0,8}}+\s*+)?"

    def _name(self) -> str:
        """The tool's name, which comes after the type."""
        return self.head.partition(_SEPARATOR)[2].partition("```")[0].strip()


tool_parser: dict[str, type[ToolParser]] = {
    "deepseek_v31": DeepSeekV31ToolParser,
    "deepseek_v3": DeepSeekV3ToolParser,
}
