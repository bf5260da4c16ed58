import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import judge_adapter
from rolltap import ToolCall
from rolltap.testing.parsing import assert_every_cut, cuts, read_pieces
from rolltap_plugins.hermes import HermesToolParser, tool_parser

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "cases" / "hermes.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]
G = ToolCall("g")
GOOD = '<tool_call>{"name": "g"}</tool_call>'


def outcome(reply):
    calls = [(call["name"], json.loads(call["arguments"])) for call in reply["tool_calls"]]
    return reply["content"], calls, reply["finish_reason"]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_collected_cases_whole_and_in_every_cut(case):
    expected = case["expect"]
    wanted = (
        expected["content"],
        [(call["name"], call["arguments"]) for call in expected["tool_calls"]],
        expected["finish_reason"],
    )
    assert outcome(judge_adapter.whole(case["text"], case["tools"], case["tool_choice"])) == wanted
    for pieces in cuts(case["text"]):
        assert outcome(judge_adapter.stream(pieces, case["tools"], case["tool_choice"])) == wanted, pieces


@pytest.mark.parametrize(
    ("block", "arguments"),
    [
        ('{"name": "f", "arguments": {"n": 1.50, "k": 1e400, "b": -0, "a": "\\u00e9é"}}', '{"n": 1.50, "k": 1e400, "b": -0, "a": "\\u00e9é"}'),
        ('{"name": "f", "arguments": "{\'x\': True}"}', '{"x": true}'),
        ("{'name': 'f', 'arguments': {'t': \"it's\", 'n': 1.50}}", '{"t": "it\'s", "n": 1.50}'),
        ('```\n{"name": "f"}\n```', "{}"),
        ('```json\n{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": {"x": 1,},}', '{"x": 1}'),
        ('{"name": "f"}}', "{}"),
        ('{"arguments": {"x": 1}, "name": "f"', '{"x": 1}'),
        ('{"name": "f", "arguments": {"x": "a\r\nb\x0b"}}', '{"x": "a\\r\\nb\\u000b"}'),
    ],
)  # fmt: skip
def test_one_meaning_is_a_call(block, arguments):
    text = f"<tool_call>\n{block}\n</tool_call>"
    expected = [ToolCall("f", arguments), G]
    assert [piece for piece in assert_every_cut(HermesToolParser, text + GOOD) if piece != "\n"] == expected


@pytest.mark.parametrize(
    "block",
    [
        '{"name": "f", "arguments": {"x": {"y": 1}',
        '{"name": "f", "arguments": 3}',
        '{"name": "f, "arguments": {"x": 1}}',
        '{"name": "f", "arguments": {"x": "a}}',
        '{"name": "f", "arguments": {"x": "say "hi" now"}}',
        '{"name": "f", "arguments": {"x": "D:\\"}}',
        '{"name": "f", "arguments": {"x": NaN}}',
        '{"name": "f", "where": "out of place"}',
        "call f",
        "",
    ],
)
def test_a_broken_block_is_content_and_the_next_one_a_call(block):
    text = f"<tool_call>{block}</tool_call>"
    assert_every_cut(HermesToolParser, text + GOOD, [text, G])


@pytest.mark.parametrize("size", range(len('<tool_call>{"name": "f", "arguments": {"x": [1, "a"]}')))
def test_a_call_that_was_cut_off_is_never_completed(size):
    text = '<tool_call>{"name": "f", "arguments": {"x": [1, "a"]}}'[:size]
    assert_every_cut(HermesToolParser, text, [text] if text else [])
    assert_every_cut(HermesToolParser, text + "<|im_end|>\n", [text] if text else [])


def test_a_call_is_given_as_soon_as_its_json_is_whole():
    parser = HermesToolParser()
    assert list(parser.feed('<tool_call>{"name": "g"')) == []
    assert list(parser.feed("}")) == [G]
    assert list(parser.finish()) == []


PARTS = [
    "<tool_call>", "</tool_call>", "<tool_", "call>", "<think>", "</think>", "<|im_end|>", "```json\n", "```", "text", " ", "\n",
    "{", "}", "[", "]", '"', "'", "\\", ",", ":", ";", "1", "True", "é", '{"name": "f", "arguments": {"x": 1}}', '{"name": "g"',
    '{"name": "h", "arguments": {"at": "</tool_call>"}',
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PARTS), max_size=14).map("".join) | st.text(
    alphabet='<tool_cal>/{}"name:', max_size=40
)


@given(TEXTS)
def test_any_text_in_any_cut_is_read_alike_and_nothing_is_lost(text):
    pieces = assert_every_cut(HermesToolParser, text)
    # What is not content is a block's markup: it stands where calls are, or is an end-of-turn mark at the very end.
    shape = "".join(
        re.escape(piece)
        if isinstance(piece, str)
        else r"(?:<tool_call>\s*(?:`|{|\[)|\s*[;,]?\s*[{\[]|)(?s:.*?)"
        for piece in pieces
    )
    assert re.fullmatch(rf"{shape}(?:<\|im_end\|>\s*)*", text)
    if not any(isinstance(piece, ToolCall) for piece in pieces):
        said = "".join(piece for piece in pieces if isinstance(piece, str))
        assert re.fullmatch(rf"{re.escape(said)}\s*(?:<\|im_end\|>\s*)*", text)


@given(st.text())
def test_text_without_marks_is_unchanged(text):
    assert read_pieces(HermesToolParser(), [text]) == ([text] if text else [])


def test_the_hook_answers_for_its_own_name():
    assert tool_parser == {"hermes": HermesToolParser}
