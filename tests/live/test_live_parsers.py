"""vLLM's own parsers in its own environment: the plugin reads with them, and our native formats agree with them.

Not compared: gpt_oss, whose parser in vLLM reads token ids of a vocabulary that openai-harmony downloads.
"""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from rolltap import Reasoning, ToolCall
from rolltap.reading import OutputReader
from rolltap.testing.parsing import read_pieces
from rolltap.testing.tokenizers import tiny_tokenizer
from rolltap_plugins.think import ThinkParser
from written_calls import FORMATS, TOOLS, as_values, some_calls

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'core'}:{ROOT / 'plugins'}", "HF_HUB_OFFLINE": "1"}
COMPARED = [name for name in FORMATS if name != "gpt_oss"]
TEXTS = ["", "I will look it up.", "Ja — gut: 好的"]
MORE_MARKS = [
    "<think>", "</think>", "<|tools_prefix|>", "<|tools_suffix|>", "<seed:think>", "</seed:think>", "<seed:tool_call>",
    "</seed:tool_call>", "<tool_calls>", "</tool_calls>", "<minimax:tool_call>", "</minimax:tool_call>",
]  # fmt: skip


@pytest.fixture(scope="module")
def vllm_reads(vllm_python, tmp_path_factory):
    """A function that has vLLM read texts: (kind, parser's name, text) each; a name may be one of `FORMATS`."""
    marks = [mark for name in COMPARED for mark in FORMATS[name].marks if mark != "[ARGS]"]
    vocabularies = {"": [*marks, *MORE_MARKS], "-v11": [*marks, "[ARGS]"]}
    folders = {
        version: str(
            tiny_tokenizer(tmp_path_factory.mktemp("marks"), plain_tokens=list(dict.fromkeys(words)))
        )
        for version, words in vocabularies.items()
    }

    def case(kind, name, text):
        version = "-v11" if name.endswith("-v11") else ""
        return {"kind": kind, "name": name.removesuffix(version), "text": text, "tokenizer": folders[version]}

    def read(*cases):
        got = subprocess.run(
            [vllm_python, ROOT / "tests/live/read_with_vllm.py"],
            check=False,
            input=json.dumps({"tools": TOOLS, "cases": [case(*each) for each in cases]}),
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
        )
        assert got.returncode == 0, got.stderr[-5000:]
        return json.loads(got.stdout)

    return read


def calls_in(pieces):
    return [(one["name"], json.loads(one["arguments"])) for one in pieces if isinstance(one, dict)]


def text_in(pieces):
    return "".join(one for one in pieces if isinstance(one, str))


def test_native_formats_agree_with_vllm_on_well_formed_outputs(vllm_reads):
    cases, expected = [], []
    for name in COMPARED:
        native = FORMATS[name]
        for seed in range(60):
            chance = random.Random(seed)
            calls = some_calls(chance, native.most_calls)
            text = chance.choice(TEXTS) if native.text_before_calls or not calls else ""
            cases.append(("tool", name, native.write(text, calls)))
            expected.append((calls, text))
    for (_, name, written), (calls, text), theirs in zip(cases, expected, vllm_reads(*cases), strict=True):
        ours = read_pieces(OutputReader(FORMATS[name].read()), [written])
        assert theirs["error"] == ""
        assert theirs["cut"] == theirs["whole"], written
        assert calls_in(theirs["whole"]) == calls, written
        assert as_values([one for one in ours if isinstance(one, ToolCall)]) == calls, written
        assert text_in(theirs["whole"]).strip() == text_in(ours) == text, written


DIFFERENCES = [
    # Text behind a call: the templates show it in front of the calls, no documentation forbids it, and Qwen 3 writes it.
    # vLLM leaves it out; here nothing that a model said is lost.
    ("hermes", FORMATS["hermes"].write("", [("search", {})]) + "\nDone.", [("search", {})], "Done.", ""),
    # A call in closed thinking was only thought of. vLLM's parser is not told of thinking and makes it a call.
    (
        "hermes",
        f"<think>{FORMATS['hermes'].write('', [('search', {})])}</think>No.",
        [],
        f"<think>{FORMATS['hermes'].write('', [('search', {})])}</think>No.",
        None,
    ),
    # One broken block: vLLM gives up all calls of the output, here it spoils no other.
    (
        "hermes",
        '<tool_call>{"name": </tool_call><tool_call>{"name": "search", "arguments": {}}</tool_call>',
        [("search", {})],
        '<tool_call>{"name": </tool_call>',
        None,
    ),
]


def test_where_they_differ_and_why(vllm_reads):
    answers = vllm_reads(*(("tool", name, text) for name, text, *_ in DIFFERENCES))
    for (name, written, calls, text, their_text), theirs in zip(DIFFERENCES, answers, strict=True):
        ours = read_pieces(OutputReader(FORMATS[name].read()), [written])
        assert as_values([one for one in ours if isinstance(one, ToolCall)]) == calls
        assert text_in(ours) == text
        if their_text is None:
            assert calls_in(theirs["whole"]) != calls
        else:
            assert (calls_in(theirs["whole"]), text_in(theirs["whole"])) == (calls, their_text)


THEIR_FORMATS = [
    ("apertus", 'Ok.<|tools_prefix|>[{"search": {"city": "Köln"}}]<|tools_suffix|>'),
    ("phi4_mini_json", 'functools[{"name": "search", "arguments": {"city": "Köln"}}]'),
    ("granite4", '<tool_call>{"name": "search", "arguments": {"city": "Köln"}}</tool_call>'),
    ("jamba", '<tool_calls>[{"name": "search", "arguments": {"city": "Köln"}}]</tool_calls>'),
    ("olmo3", '<function_calls>search(city="Köln")</function_calls>'),
    ("xlam", '[{"name": "search", "arguments": {"city": "Köln"}}]'),
    (
        "seed_oss",
        "<seed:tool_call>\n<function=search>\n<parameter=city>Köln</parameter>\n</function>\n</seed:tool_call>",
    ),
    (
        "minimax_m2",
        (
            '<minimax:tool_call>\n<invoke name="search">\n<parameter name="city">Köln</parameter>\n</invoke>\n'
            "</minimax:tool_call>"
        ),
    ),
]


def test_formats_that_only_vllm_reads(vllm_reads):
    for (name, text), read in zip(
        THEIR_FORMATS, vllm_reads(*(("tool", *case) for case in THEIR_FORMATS)), strict=True
    ):
        assert read["error"] == "", name
        assert calls_in(read["whole"]) == [("search", {"city": "Köln"})], (name, text, read)
        assert read["cut"] == read["whole"], name


def test_every_name_is_known_and_what_can_not_be_loaded_says_why(vllm_reads, vllm_python):
    code = (
        "import json; from rolltap_plugins.vllm_parsers.names import listed; "
        "print(json.dumps([sorted(listed(kind)) for kind in ('tool', 'reasoning')]))"
    )
    printed = subprocess.run(
        [vllm_python, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT
    )
    tool, reasoning = json.loads(printed.stdout)
    assert (len(tool), len(reasoning)) == (54, 38)
    plain = "Just text, a < b.\n"
    cases = [("tool", name, plain) for name in tool]
    for (_, name, _), read in zip(cases, vllm_reads(*cases), strict=True):
        if read["error"]:
            assert "vLLM" in read["error"], name
        else:
            assert text_in(read["whole"]).strip() == plain.strip(), (name, read)
            assert read["cut"] == read["whole"], name
    (stub,) = vllm_reads(("tool", "openai", plain))
    assert "HarmonyParser" in stub["error"]


def test_thinking_agrees(vllm_reads):
    texts = ["<think>\nHm, 1 < 2.\n</think>\n\nDone.", "<think>a</think>b", "<think>never closed"]
    names = ["deepseek_r1", "glm45"]
    cases = [("reasoning", name, text) for name in names for text in texts]
    for (_, name, text), read in zip(cases, vllm_reads(*cases), strict=True):
        ours = read_pieces(ThinkParser(), [text])
        thoughts = [one["reasoning"] for one in read["whole"] if isinstance(one, dict)]
        assert thoughts == [one.text for one in ours if isinstance(one, Reasoning)], (name, read)
        assert text_in(read["whole"]).strip() == text_in(ours), (name, read)
        assert read["cut"] == read["whole"]
