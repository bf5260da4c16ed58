"""Reasoning between marks, as most models write it: `<think>…</think>` and others' words for the same."""

from collections.abc import Callable

from rolltap import ReasoningParser, TagReasoningParser, hookimpl


class ThinkParser(TagReasoningParser):
    """`<think>…</think>`: DeepSeek, Qwen, GLM, MiniMax, Kimi, Nemotron and many more."""

    open = "<think>"
    close = "</think>"


class MistralThinkParser(TagReasoningParser):
    """`[THINK]…[/THINK]`: Magistral and later; the marks are special tokens."""

    open = "[THINK]"
    close = "[/THINK]"
    keep_special_tokens = True


class SeedThinkParser(TagReasoningParser):
    """`<seed:think>…</seed:think>`: Seed-OSS."""

    open = "<seed:think>"
    close = "</seed:think>"
    keep_special_tokens = True


class KimiThinkParser(TagReasoningParser):
    """`◁think▷…◁/think▷`: Kimi-VL Thinking."""

    open = "◁think▷"
    close = "◁/think▷"


class GraniteThinkParser(TagReasoningParser):
    """Granite 3.2's sentences in place of marks."""

    open = "Here is my thought process:"
    close = "Here is my response:"


PARSERS: dict[str, type[TagReasoningParser]] = {
    "think": ThinkParser,
    "deepseek_r1": ThinkParser,
    "qwen3": ThinkParser,
    "glm45": ThinkParser,
    "mistral": MistralThinkParser,
    "seed_oss": SeedThinkParser,
    "kimi_vl": KimiThinkParser,
    "granite": GraniteThinkParser,
}


@hookimpl
def reasoning_parser(name: str) -> Callable[[], ReasoningParser] | None:
    """Answer for the names in `PARSERS`."""
    return PARSERS.get(name)


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"reasoning_parser": list(PARSERS)}
