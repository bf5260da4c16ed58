"""Outputs as models write them in each native format: what the formats' own templates show for the same calls."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rolltap import ToolCall, ToolParser
from rolltap_plugins import hermes
from rolltap_plugins.tool_formats import (
    deepseek,
    glm45,
    gpt_oss,
    kimi_k2,
    llama3_json,
    mistral,
    pythonic,
    qwen3_coder,
)

Arguments = dict[str, Any]
Calls = Sequence[tuple[str, Arguments]]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Does something.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "ratio": {"type": "number"},
                    "sure": {"type": "boolean"},
                    "tags": {"type": "array"},
                    "more": {"type": "object"},
                },
            },
        },
    }
    for name in ("get_weather", "search", "notes_add")
]
NAMES = [tool["function"]["name"] for tool in TOOLS]
WORDS = [
    "Paris",
    "Köln",
    "東京",
    "🚀 up",
    'a "quoted" one',
    "it's",
    "a, b: c",
    "{braces}",
    "[1]",
    "two\nlines",
    "a\\b",
    "",
]


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _hermes(text: str, calls: Calls) -> str:
    blocks = [
        f"<tool_call>\n{as_json({'name': name, 'arguments': arguments})}\n</tool_call>"
        for name, arguments in calls
    ]
    return "\n".join([*([text] if text else []), *blocks])


def _llama3_json(text: str, calls: Calls) -> str:
    return text + "; ".join(
        f'{{"name": "{name}", "parameters": {as_json(arguments)}}}' for name, arguments in calls
    )


def _mistral(text: str, calls: Calls) -> str:
    listed = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return f"{text}[TOOL_CALLS] {as_json(listed)}" if calls else text


def _mistral_v11(text: str, calls: Calls) -> str:
    return text + "".join(f"[TOOL_CALLS]{name}[ARGS]{as_json(arguments)}" for name, arguments in calls)


def _pythonic(text: str, calls: Calls) -> str:
    written = [
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        for name, arguments in calls
    ]
    return f"[{', '.join(written)}]" if calls else text


def _raw(value: Any) -> str:
    return value if isinstance(value, str) else as_json(value)


def _qwen3_coder(text: str, calls: Calls) -> str:
    blocks = []
    for name, arguments in calls:
        values = "".join(
            f"<parameter={key}>\n{_raw(value)}\n</parameter>\n" for key, value in arguments.items()
        )
        blocks.append(f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>")
    return "\n".join([*([text] if text else []), *blocks])


def _glm45(text: str, calls: Calls) -> str:
    blocks = []
    for name, arguments in calls:
        values = "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{_raw(value)}</arg_value>\n"
            for key, value in arguments.items()
        )
        blocks.append(f"<tool_call>{name}\n{values}</tool_call>")
    return "\n".join([*([text] if text else []), *blocks])


def _deepseek_v31(text: str, calls: Calls) -> str:
    blocks = "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{as_json(arguments)}<｜tool▁call▁end｜>"  # noqa: RUF001
        for name, arguments in calls
    )
    return f"{text}<｜tool▁calls▁begin｜>{blocks}<｜tool▁calls▁end｜>" if calls else text  # noqa: RUF001


def _deepseek_v3(text: str, calls: Calls) -> str:
    blocks = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{as_json(arguments)}\n```<｜tool▁call▁end｜>"  # noqa: RUF001
        for name, arguments in calls
    )
    return f"{text}<｜tool▁calls▁begin｜>{blocks}<｜tool▁calls▁end｜>" if calls else text  # noqa: RUF001


def _kimi_k2(text: str, calls: Calls) -> str:
    blocks = "".join(
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{as_json(arguments)}<|tool_call_end|>"
        for number, (name, arguments) in enumerate(calls)
    )
    return f"{text}<|tool_calls_section_begin|>{blocks}<|tool_calls_section_end|>" if calls else text


def _gpt_oss(text: str, calls: Calls) -> str:
    said = f"<|channel|>{'commentary' if calls else 'final'}<|message|>{text}<|end|>" if text else ""
    for name, arguments in calls:
        said += "<|start|>assistant" if said else ""
        said += f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{as_json(arguments)}<|call|>"
    return said


class Native(NamedTuple):
    """One of our formats: how it is written, what reads it, and what it allows."""

    write: Callable[[str, Calls], str]
    read: Callable[[], ToolParser]
    marks: tuple[str, ...] = ()
    """Tokens that vLLM's parser looks for in the vocabulary."""
    text_before_calls: bool = True
    most_calls: int = 3


def _reader(module: Any, name: str, *tools: Any) -> Callable[[], ToolParser]:
    declared = module.tool_parser
    found: Callable[[], ToolParser] = declared[name] if isinstance(declared, dict) else declared(name, *tools)
    return found


_DEEPSEEK = (
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",  # noqa: RUF001
)  # fmt: skip
FORMATS: dict[str, Native] = {
    "hermes": Native(_hermes, _reader(hermes, "hermes"), ("<tool_call>", "</tool_call>")),
    "llama3_json": Native(
        _llama3_json, _reader(llama3_json, "llama3_json"), ("<|python_tag|>",), text_before_calls=False
    ),
    "mistral": Native(_mistral, _reader(mistral, "mistral"), ("[TOOL_CALLS]",)),
    "mistral-v11": Native(_mistral_v11, _reader(mistral, "mistral"), ("[TOOL_CALLS]", "[ARGS]")),
    "pythonic": Native(_pythonic, _reader(pythonic, "pythonic"), text_before_calls=False),
    "qwen3_coder": Native(
        _qwen3_coder, _reader(qwen3_coder, "qwen3_coder", TOOLS), ("<tool_call>", "</tool_call>")
    ),
    "glm45": Native(_glm45, _reader(glm45, "glm45", TOOLS), ("<tool_call>", "</tool_call>")),
    "deepseek_v3": Native(_deepseek_v3, _reader(deepseek, "deepseek_v3"), _DEEPSEEK),
    "deepseek_v31": Native(_deepseek_v31, _reader(deepseek, "deepseek_v31"), _DEEPSEEK),
    "kimi_k2": Native(
        _kimi_k2,
        _reader(kimi_k2, "kimi_k2"),
        (
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
        ),
    ),
    "gpt_oss": Native(_gpt_oss, _reader(gpt_oss, "gpt_oss")),
}


def some_value(chance: random.Random, depth: int = 0) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: chance.choice(WORDS),
        lambda: chance.choice([0, -7, 42, 10**12]),
        lambda: chance.choice([0.5, -1.25, 1e-5, 3.0]),
        lambda: chance.choice([True, False]),
    ]
    if depth < 2:
        kinds += [
            lambda: [some_value(chance, depth + 1) for _ in range(chance.randint(0, 3))],
            lambda: {
                chance.choice(["a", "b c", "ключ"]): some_value(chance, depth + 1)
                for _ in range(chance.randint(0, 2))
            },
            lambda: {"none": None},
        ]
    return chance.choice(kinds)()


def some_arguments(chance: random.Random) -> Arguments:
    made: dict[str, Callable[[], Any]] = {
        "city": lambda: chance.choice(WORDS),
        "days": lambda: chance.choice([0, -7, 42, 10**12]),
        "ratio": lambda: chance.choice([0.5, -1.25, 1e-05, 3.0]),
        "sure": lambda: chance.choice([True, False]),
        "tags": lambda: [some_value(chance, 1) for _ in range(chance.randint(0, 3))],
        "more": lambda: {"x": some_value(chance), "y": some_value(chance, 1)},
    }
    return {key: made[key]() for key in chance.sample(sorted(made), chance.randint(0, 4))}


def some_calls(chance: random.Random, most: int = 3) -> list[tuple[str, Arguments]]:
    return [(chance.choice(NAMES), some_arguments(chance)) for _ in range(chance.randint(0, most))]


def as_values(calls: Sequence[ToolCall]) -> list[tuple[str, Arguments]]:
    return [(call.name, json.loads(call.arguments)) for call in calls]
