"""Reasoning between marks, as most models write it: `<think>…</think>` and others' words for the same."""

from rolltap import TagReasoningParser


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


reasoning_parser: dict[str, type[TagReasoningParser]] = {
    "think": ThinkParser,
    "deepseek_r1": ThinkParser,
    "qwen3": ThinkParser,
    "glm45": ThinkParser,
    "mistral": MistralThinkParser,
    "seed_oss": SeedThinkParser,
    "kimi_vl": KimiThinkParser,
    "granite": GraniteThinkParser,
}
