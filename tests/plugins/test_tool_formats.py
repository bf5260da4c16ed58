"""Well-formed outputs of each format, ill-formed ones, and any text at all."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltap import Reasoning, ToolCall
from rolltap.reading import OutputReader
from rolltap.testing import assert_every_cut
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

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "order",
            "parameters": {
                "type": "object",
                "properties": {
                    "colour": {"type": "string"},
                    "litres": {"type": "number"},
                    "rush": {"type": "boolean"},
                    "rows": {"type": "array"},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "size": {"enum": ["1", "2"]},
                },
            },
        },
    },
    {"type": "web_search"},
]
PARSERS: dict[str, Any] = {
    "llama3_json": llama3_json.tool_parser["llama3_json"],
    "mistral": mistral.tool_parser["mistral"],
    "pythonic": pythonic.tool_parser["pythonic"],
    "qwen3_coder": qwen3_coder.tool_parser("qwen3_coder", TOOLS),
    "glm45": glm45.tool_parser("glm45", TOOLS),
    "deepseek_v3": deepseek.tool_parser["deepseek_v3"],
    "deepseek_v31": deepseek.tool_parser["deepseek_v31"],
    "kimi_k2": kimi_k2.tool_parser["kimi_k2"],
    "gpt_oss": gpt_oss.tool_parser["gpt_oss"],
}
TWO = [ToolCall("order", '{"litres": 2.50}'), ToolCall("b", "{}")]
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001
CALL, SEP, CALLED = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001

WELL_FORMED = [
    ("llama3_json", '{"name": "order", "parameters": {"litres": 2.50}}; {"name": "b", "parameters": {}}', TWO),
    ("llama3_json", 'Ok. <|python_tag|>{"name": "b", "parameters": {}}<|eom_id|>', ["Ok.", TWO[1]]),
    ("mistral", '[TOOL_CALLS] [{"name": "order", "arguments": {"litres": 2.50}}, {"name": "b"}]</s>', TWO),
    ("mistral", 'Ok.[TOOL_CALLS]order[ARGS]{"litres": 2.50}[TOOL_CALLS]b[CALL_ID]x1[ARGS]{}', ["Ok.", *TWO]),
    ("mistral", '[TOOL_CALLS]order{"litres": 2.50}[TOOL_CALLS]b{}', TWO),
    ("pythonic", "[order(litres=2.50), b()]", TWO),
    ("pythonic", "[b()]\nDone.", [TWO[1], "Done."]),
    (
        "qwen3_coder",
        (
            "Ok.\n<tool_call>\n<function=order>\n<parameter=litres>\n2.50\n</parameter>\n</function>\n</tool_call>\n"
            "<tool_call>\n<function=b>\n</function>\n</tool_call>\nDone."
        ),
        ["Ok.", *TWO, "\n\nDone."],
    ),
    (
        "glm45",
        (
            "Ok.\n<tool_call>order\n<arg_key>litres</arg_key>\n<arg_value>2.50</arg_value>\n</tool_call>\n"
            "<tool_call>b\n</tool_call><|observation|>"
        ),
        ["Ok.", *TWO],
    ),
    (
        "deepseek_v31",
        f'Ok.{BEGIN}{CALL}order{SEP}{{"litres": 2.50}}{CALLED}{CALL}b{SEP}{{}}{CALLED}{END}',
        ["Ok.", *TWO],
    ),
    (
        "deepseek_v3",
        (
            f"Ok.{BEGIN}{CALL}function{SEP}order\n```json\n{{\"litres\": 2.50}}\n```{CALLED}\n"
            f"{CALL}function{SEP}b\n```json\n{{}}\n```{CALLED}{END}"
        ),
        ["Ok.", *TWO],
    ),
    (
        "kimi_k2",
        (
            "Ok.<|tool_calls_section_begin|><|tool_call_begin|>functions.order:0<|tool_call_argument_begin|>"
            '{"litres": 2.50}<|tool_call_end|><|tool_call_begin|>functions.b:1<|tool_call_argument_begin|>{}'
            "<|tool_call_end|><|tool_calls_section_end|>"
        ),
        ["Ok.", ToolCall("order", '{"litres": 2.50}', "functions.order:0"), ToolCall("b", "{}", "functions.b:1")],
    ),
    (
        "gpt_oss",
        (
            "<|channel|>commentary<|message|>Ok.<|end|><|start|>assistant<|channel|>commentary to=functions.order "
            '<|constrain|>json<|message|>{"litres": 2.50}<|call|><|start|>assistant to=functions.b<|channel|>commentary'
            "<|message|>{}"
        ),
        ["Ok.", *TWO],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "pieces"), WELL_FORMED)
def test_well_formed_outputs(name, text, pieces):
    assert_every_cut(lambda: OutputReader(PARSERS[name]()), text, pieces)


@pytest.mark.parametrize("name", PARSERS)
def test_plain_text_is_unchanged(name):
    text = "\nIf a < b[0] {x}, say <tool> or [x](y).\n"
    assert_every_cut(lambda: OutputReader(PARSERS[name]()), text, [text])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3_json", '{"answer": 42} it is'),
        ("llama3_json", "<|python_tag|>print(1)"),
        ("llama3_json", '{"name": "order", "parameters": {"litres": 2'),
        ("mistral", "[TOOL_CALLS] is a token of mine [ARGS]"),
        ("mistral", '[TOOL_CALLS]order[ARGS]{"litres": 2'),
        ("pythonic", "[order(1)]"),
        ("pythonic", "[order(**x)]"),
        ("pythonic", "[order(x=y), b()]"),
        ("pythonic", "[link(s)](x)"),
        ("pythonic", '[order(litres=2, colour="gre'),
        ("pythonic", "[order(x=1j)]"),
        ("qwen3_coder", "<tool_call>\n<function=order>\n<parameter=colour>\ngre"),
        ("qwen3_coder", "<tool_call>\n<function=order>\n<parameter=colour>\nsee </function> and"),
        ("qwen3_coder", "<tool_call> opens, <function=x> too"),
        ("glm45", "<tool_call>order\n<arg_key>colour</arg_key>\n<arg_value>gre"),
        ("glm45", "<tool_call>order\n<arg_key>colour</arg_key>\n<arg_value>green</arg_value>"),
        ("glm45", "<tool_call> opens a call</tool_call>"),
        ("deepseek_v31", f"{BEGIN}{CALL}order{SEP}{{"),
        ("deepseek_v31", f"{BEGIN}none"),
        ("deepseek_v3", f"{CALL}function{SEP}order\n```json\n[3]\n```{CALLED}"),
        ("kimi_k2", "<|tool_call_begin|>functions.order:0{}<|tool_call_end|>"),
        ("gpt_oss", '<|channel|>commentary to=functions.order<|message|>{"lit'),
        ("gpt_oss", "<|channel|>commentary to=python<|message|>1<|call|>"),
        ("gpt_oss", "<|channel|>no message"),
    ],
)
def test_what_is_no_call_stays_content(name, text):
    assert_every_cut(lambda: OutputReader(PARSERS[name]()), text, [text])


PARTS = {
    "llama3_json": ["<|python_tag|>", '{"name": "f", "parameters": {}}', ";", "<|eot_id|>"],
    "mistral": ["[TOOL_CALLS]", "f", "[ARGS]", "[CALL_ID]", "{}", '[{"name": "f"}]', "</s>"],
    "pythonic": ["[f(", "x=", "1", "'a]'", ")", "]", ", ", "f(", "\\", '"""'],
    "qwen3_coder": ["<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=x>", "</parameter>"],
    "glm45": ["<tool_call>", "</tool_call>", "f", "<arg_key>x</arg_key>", "<arg_value>", "</arg_value>", "<arg_key>"],
    "deepseek_v31": [BEGIN, END, CALL, SEP, CALLED, "f", "{}"],
    "deepseek_v3": [BEGIN, END, CALL, SEP, CALLED, "f", "{}", "```json", "```"],
    "kimi_k2": ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>",
                "<|tool_call_argument_begin|>", "functions.f:0", "{}"],
    "gpt_oss": ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "assistant", "analysis",
                " to=functions.f", "to=functions.", "{}"],
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
@given(data=st.data())
def test_any_text_in_any_cut_is_read_alike(name, data):
    parts = st.sampled_from([*PARTS[name], *PARTS[name], "<", "{", "[", '"', "'", " ", "\n", "text", "é"])
    text = "".join(data.draw(st.lists(parts, max_size=14)))
    assert_every_cut(PARSERS[name], text)


def qwen(colour):
    return f"<tool_call>\n<function=order>\n<parameter=colour>\n{colour}\n</parameter>\n</function>\n</tool_call>"


def glm(colour):
    return f"<tool_call>order\n<arg_key>colour</arg_key>\n<arg_value>{colour}</arg_value>\n</tool_call>"


@pytest.mark.parametrize(
    ("name", "write", "value"),
    [
        ("qwen3_coder", qwen, '"</tool_call>" ends, </parameter> too\\n'),
        (
            "qwen3_coder",
            qwen,
            "<tool_call><function=b><parameter=x>1</parameter></function></tool_call> is a call",
        ),
        ("qwen3_coder", qwen, "\n  two lines\n"),
        ("glm45", glm, "</tool_call> ends, </arg_value> too"),
        ("glm45", glm, glm("green") + " is a call"),
        ("glm45", glm, "\n 5\n"),
    ],
)
def test_marks_inside_a_value_are_data(name, write, value):
    (call,) = assert_every_cut(lambda: OutputReader(PARSERS[name]()), write(value))
    assert isinstance(call, ToolCall)
    assert call == ToolCall("order", '{"colour": ' + pythonic._dumps(value) + "}")


@pytest.mark.parametrize(
    ("key", "value", "written"),
    [
        ("colour", "5", '"5"'),
        ("litres", "2.50", "2.50"),
        ("litres", "two", '"two"'),
        ("rush", "True", "true"),
        ("rows", "[1, {'a': None}]", '[1, {"a": null}]'),
        ("note", "null", "null"),
        ("note", "none", '"none"'),
        ("size", "1", '"1"'),
    ],
)
def test_values_are_typed_by_the_tools_schemas(key, value, written):
    call = ToolCall("order", f'{{"{key}": {written}}}')
    assert_every_cut(PARSERS["qwen3_coder"], qwen(value).replace("colour", key), [call])
    assert_every_cut(PARSERS["glm45"], glm(value).replace("colour", key), [call])


def test_a_value_without_a_type_is_what_its_format_writes():
    assert_every_cut(
        PARSERS["qwen3_coder"], qwen("5").replace("colour", "x"), [ToolCall("order", '{"x": "5"}')]
    )
    assert_every_cut(PARSERS["glm45"], glm("5").replace("colour", "x"), [ToolCall("order", '{"x": 5}')])


def test_qwen_may_leave_marks_out():
    text = "<function=order>\n<parameter=colour>\nred\n<parameter=litres>\n2\n</function>\n</tool_call>"
    assert_every_cut(PARSERS["qwen3_coder"], text, [ToolCall("order", '{"colour": "red", "litres": 2}')])


def test_python_values_become_json():
    text = """[f(a='it\\'s', b=-1, c=1.50, d=(1, 2), e={'k': None}, g='é', h="a" 'b', i=0x10, j='\\d')]"""
    assert_every_cut(
        PARSERS["pythonic"],
        text,
        [
            ToolCall(
                "f",
                '{"a": "it\'s", "b": -1, "c": 1.50, "d": [1, 2], "e": {"k": null}, "g": "é", "h": "ab", "i": 16, '
                '"j": "\\\\d"}',
            )
        ],
    )


def test_harmony_with_both_parsers():
    make = lambda: OutputReader(gpt_oss.HarmonyToolParser(), gpt_oss.HarmonyReasoningParser())  # noqa: E731
    thought = "<|channel|>analysis<|message|>Hm <b>.<|end|><|start|>assistant"
    final = "<|channel|>final<|message|>Hi.<|return|>"
    call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>'
    assert_every_cut(make, thought + final, [Reasoning("Hm <b>."), "Hi."])
    assert_every_cut(make, thought + call, [Reasoning("Hm <b>."), ToolCall("f", '{"x": 1}')])
    assert_every_cut(lambda: OutputReader(None, gpt_oss.HarmonyReasoningParser()), final + " ", ["Hi. "])


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (' to=functions.f<|channel|>commentary json<|message|>{"x": 1}<|call|>', [ToolCall("f", '{"x": 1}')]),
        (" to=functions.f is not a header", [" to=functions.f is not a header"]),
        (" to=functions.f<|end|>Hi", [" to=functions.fHi"]),
        ("to=func", ["to=func"]),
        (" to be", [" to be"]),
    ],
)
def test_harmony_where_the_prompt_has_opened_the_header(text, pieces):
    assert_every_cut(lambda: OutputReader(gpt_oss.HarmonyToolParser()), text, pieces)


@pytest.mark.parametrize("module", [glm45, qwen3_coder])
def test_other_names_are_not_ours(module):
    assert module.tool_parser("other", TOOLS) is None
