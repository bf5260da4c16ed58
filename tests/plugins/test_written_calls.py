# ruff: noqa: RUF001  # DeepSeek's marks
"""Every native format reads back what it is written as, and a recorded call that a template shows again."""

import json
import random
from itertools import takewhile

import pytest

from rendering_conversations import REAL_TEMPLATES
from rolltap import ChatRequest, Message, ToolCall
from rolltap.reading import OutputReader
from rolltap.rendering import Renderer
from rolltap.testing.parsing import read_pieces
from rolltap.testing.tokenizers import FAMILIES, tiny_tokenizer
from written_calls import FORMATS, TOOLS, as_values, some_calls

TEXTS = ["", "I will look it up.", "Ja — gut: 好的", "1 < 2 & 3 > 2."]


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_format_writes_is_read_back(name):
    native = FORMATS[name]
    for seed in range(150):
        chance = random.Random(seed)
        calls = some_calls(chance, native.most_calls)
        text = chance.choice(TEXTS) if native.text_before_calls or not calls else ""
        written = native.write(text, calls)
        for pieces in ([written], list(written)):
            read = read_pieces(OutputReader(native.read()), pieces)
            assert as_values([one for one in read if isinstance(one, ToolCall)]) == calls, written
            assert "".join(one for one in read if isinstance(one, str)) == text


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_outputs_are_read_alike_and_never_raise(name):
    native = FORMATS[name]
    for seed in range(150):
        chance = random.Random(seed)
        text = native.write("Ok.", some_calls(chance, native.most_calls))
        for _ in range(chance.randint(1, 4)):
            start = chance.randrange(len(text) + 1)
            kept = chance.choice(
                ["", text[start : start + 9] * 2, '"', "}", "<", "[TOOL_CALLS]", "</tool_call>"]
            )
            text = text[:start] + kept + text[start + chance.randint(0, 9) :]
        whole = read_pieces(OutputReader(native.read()), [text])
        assert read_pieces(OutputReader(native.read()), list(text)) == whole, text


# What the families of rolltap.testing lack, in the manner of the models' own templates.
_TURN = """
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
{{- '## Return of ' + message.tool_call_id + '\n' if message.tool_call_id else '' }}
{{- message.content or '' }}
{%- if message.tool_calls %}CALLS{% endif %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""
_EACH = "{%- for call in message.tool_calls %}{% set f = call.function %}"
_CALLS = {
    # Qwen3-Coder shows Python's words for what is neither text nor a list nor an object.
    "qwen3_coder": _EACH + """
        {{- '\n<tool_call>\n<function=' + f.name + '>\n' }}
        {%- for key, value in f.arguments.items() %}
            {{- '<parameter=' + key + '>\n' }}
            {{- value | tojson if value is mapping or (value is sequence and value is not string) else value | string }}
            {{- '\n</parameter>\n' }}
        {%- endfor %}
        {{- '</function>\n</tool_call>' }}{% endfor %}""",
    # Kimi K2 shows ids, and names nowhere.
    "kimi_k2": "{{- '<|tool_calls_section_begin|>' }}" + _EACH + """
        {{- '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' }}
        {{- f.arguments if f.arguments is string else f.arguments | tojson }}
        {{- '<|tool_call_end|>' }}{% endfor %}{{- '<|tool_calls_section_end|>' }}""",
    "deepseek_v31": "{{- '<｜tool▁calls▁begin｜>' }}" + _EACH + """
        {{- '<｜tool▁call▁begin｜>' + f.name + '<｜tool▁sep｜>' }}
        {{- f.arguments if f.arguments is string else f.arguments | tojson }}
        {{- '<｜tool▁call▁end｜>' }}{% endfor %}{{- '<｜tool▁calls▁end｜>' }}""",
    "mistral-v11": _EACH + """
        {{- '[TOOL_CALLS]' + f.name + '[ARGS]' + (f.arguments if f.arguments is string else f.arguments | tojson) }}
        {%- endfor %}""",
    "pythonic": "{{- '[' }}" + _EACH + """
        {{- f.name + '(' }}
        {%- for key, value in f.arguments.items() %}
            {{- key + '=' + '%r' | format(value) + ('' if loop.last else ', ') }}
        {%- endfor %}
        {{- ')' + ('' if loop.last else ', ') }}{% endfor %}{{- ']' }}""",
}  # fmt: skip
STYLES = [
    *(("hermes", family, 3) for family in ("chatml", "qwen3")),
    ("llama3_json", "llama3", 1),
    ("mistral", "mistral", 3),
    ("glm45", "glm", 3),
    ("deepseek_v3", "deepseek", 3),
    ("gpt_oss", "harmony", 1),
    *((name, "", 3) for name in _CALLS),
    *(("hermes", style, 3) for style in ("real-qwen3",) if style in REAL_TEMPLATES),
    *(("glm45", style, 3) for style in ("real-glm-4.6",) if style in REAL_TEMPLATES),
    *(("deepseek_v3", style, 3) for style in ("real-deepseek-r1",) if style in REAL_TEMPLATES),
]


@pytest.mark.parametrize(("name", "family", "most_calls"), STYLES)
def test_a_call_that_a_template_shows_is_read_as_the_same_call(name, family, most_calls, tmp_path):
    """History of another client, which no record has: the model must find its own format in it."""
    if family in REAL_TEMPLATES:
        base, template = REAL_TEMPLATES[family]
        FAMILIES[base].build(tmp_path)
        (tmp_path / "chat_template.jinja").write_text(template.read_text(encoding="utf-8"), encoding="utf-8")
    elif family:
        FAMILIES[family].build(tmp_path)
    else:
        words = list(dict.fromkeys(FORMATS[name].marks))
        tiny_tokenizer(tmp_path, template=_TURN.replace("CALLS", _CALLS[name]), plain_tokens=words)
    renderer = Renderer.load(str(tmp_path))
    user = Message(role="user", content="Look it up.")
    before = renderer.prompt(ChatRequest(messages=[user], tools=TOOLS)).text
    for seed in range(60):
        calls = some_calls(random.Random(seed), most_calls)
        if not calls:
            continue
        recorded = [
            ToolCall(tool, json.dumps(arguments), f"call_{seed}_{number}")
            for number, (tool, arguments) in enumerate(calls)
        ]
        results = [Message(role="tool", content="Done.", tool_call_id=call.id) for call in recorded]
        messages = [user, Message(role="assistant", tool_calls=recorded), *results]
        shown = renderer.prompt(ChatRequest(messages=messages, tools=TOOLS)).text
        shown = shown[
            len(list(takewhile(lambda pair: pair[0] == pair[1], zip(before, shown, strict=False)))) :
        ]
        read = [
            one
            for one in read_pieces(OutputReader(FORMATS[name].read()), [shown])
            if isinstance(one, ToolCall)
        ]
        assert as_values(read) == calls, shown


def test_results_go_with_the_ids_that_a_template_shows_for_calls(tmp_path):
    template = _TURN.replace("CALLS", _CALLS["kimi_k2"])
    tiny_tokenizer(tmp_path, template=template, plain_tokens=FORMATS["kimi_k2"].marks)
    renderer = Renderer.load(str(tmp_path))
    messages = [
        Message(role="user", content="Look it up."),
        Message(role="assistant", tool_calls=[ToolCall("search", "{}", "call_x")]),
        Message(role="tool", content="Done.", tool_call_id="call_x"),
    ]
    request = ChatRequest(messages=messages, tools=TOOLS)
    assert "## Return of functions.search:0\n" in renderer.prompt(request).text
    end = renderer.encode("<|im_end|>")[-1]
    assert "## Return of functions.search:0\n" in renderer.suffix(request, 2, end).text
