"""DeepSeek's formats: a group of calls, each a name and JSON between special tokens."""

from collections.abc import Callable

from rolltap import JsonToolParser, ToolCall, ToolParser, arguments_from_json, hookimpl, mark_pattern

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

    def read(self, block: str) -> ToolCall | None:
        """The arguments of the tool that the head names."""
        name, separator, _ = self.head.partition(_SEPARATOR)
        return self._call(name if separator else "", block)

    def _call(self, name: str, block: str) -> ToolCall | None:
        arguments = arguments_from_json(block)
        return ToolCall(name.strip(), arguments) if name.strip() and arguments is not None else None


class DeepSeekV3ToolParser(DeepSeekV31ToolParser):
    """V3 and R1: a type, the separator, the name on a line of its own, and the JSON in a fence."""

    head_pattern = rf"{_NAME}{mark_pattern(_SEPARATOR)}?{_NAME}(?:`{{1,2}}\Z|```[a-z]{{0,8}}+\s*+)?"

    def read(self, block: str) -> ToolCall | None:
        """The arguments of the tool that the head names after the type."""
        name = self.head.partition(_SEPARATOR)[2].partition("```")[0]
        return self._call(name, block)


@hookimpl
def tool_parser(name: str) -> Callable[[], ToolParser] | None:
    """Answer for "deepseek_v31" and "deepseek_v3"."""
    return {"deepseek_v31": DeepSeekV31ToolParser, "deepseek_v3": DeepSeekV3ToolParser}.get(name)
