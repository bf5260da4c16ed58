import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltap import Reasoning, TagReasoningParser, TagToolParser, ToolCall, ToolChoice
from rolltap.reading import OutputReader
from rolltap.testing import assert_every_cut


class Call(TagToolParser):
    open, close = "<c>", "</c>"

    def read(self, block):
        return ToolCall(block.strip())


class Thought(TagReasoningParser):
    open, close = "<t>", "</t>"


def reader(tool_choice=None, prompt_tail=""):
    return lambda: OutputReader(Call(), Thought(), tool_choice or ToolChoice(), prompt_tail)


F = ToolCall("f")
G = ToolCall("g")


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("\n\n plain \n", ["\n\n plain \n"]),
        (" \n", [" \n"]),
        ("a <c>f</c> ", ["a", F]),
        ("\n<c>f</c>\n<c>g</c>\n", [F, G]),
        ("a\n<c>f</c>\nb\n<c>g</c>\nc", ["a", F, "\n\nb", G, "\n\nc"]),
        ("a\n<c>f</c> <c>g</c> b", ["a", F, G, "\n b"]),
        ("<c>f</c>\n\n b ", [F, "b"]),
    ],
)
def test_white_space_that_frames_calls_is_no_content(text, pieces):
    assert_every_cut(reader(), text, pieces)


def test_white_space_waits_no_longer_than_it_may_frame_a_call():
    read = reader()()
    assert [read.feed(piece) for piece in ("a", "\n", " b", "<c>f</c>")] == [["a"], [], ["\n b"], [F]]


def test_without_a_tool_parser_the_text_is_content_as_it_is():
    assert_every_cut(OutputReader, " <c>f</c> \n", [" <c>f</c> \n"])


def test_calls_are_read_in_the_answer_alone():
    assert_every_cut(
        reader(), "<t>\nuse <c>f</c>?\n</t>\n\nOk.<c>g</c>", [Reasoning("use <c>f</c>?"), "Ok.", G]
    )


def test_the_prompt_may_open_the_thinking():
    assert_every_cut(reader(prompt_tail="<|a|>\n<t>\n"), "hm</t>yes", [Reasoning("hm"), "yes"])


def test_a_call_ends_thinking_that_nothing_else_ends():
    assert_every_cut(reader(), "<t>hm <c>f</c>", [Reasoning("hm "), F])
    assert_every_cut(lambda: OutputReader(None, Thought()), "<t>hm <c>f</c>", [Reasoning("hm <c>f</c>")])


class TestDemandedCalls:
    required = ToolChoice("required")
    named = ToolChoice("named", "f")

    @pytest.mark.parametrize(
        ("text", "pieces"),
        [
            (' [{"name": "f", "parameters": {"x": 1}}, {"name": "g"}]\n', [ToolCall("f", '{"x": 1}'), G]),
            ('{"name": "f", "arguments": {}}', [F]),
            ("<t>so</t>\n[{\"name\": \"f\"}]", [Reasoning("so"), F]),
            ("<c>f</c>", [F]),
            ("[]", ["[]"]),
            ('[{"name": "f"}] <c>g</c>', ['[{"name": "f"}]', G]),
            ('[{"name": "f"', ['[{"name": "f"']),
            ('As JSON: {"name": "f"}', ['As JSON: {"name": "f"}']),
        ],
    )  # fmt: skip
    def test_required(self, text, pieces):
        assert_every_cut(reader(self.required), text, pieces)

    @pytest.mark.parametrize(
        ("text", "pieces"),
        [
            ('{"x": 0.750}\n', [ToolCall("f", '{"x": 0.750}')]),
            ("{}", [F]),
            ('{"name": "g"}', [ToolCall("f", '{"name": "g"}')]),
            ('{"name": "f", "arguments": {"x": 1}}', [ToolCall("f", '{"x": 1}')]),
            ('[{"name": "f"}]', [F]),
            ("[1]", ["[1]"]),
            ("<c>f</c>", [F]),
            ('{"x": "cut', ['{"x": "cut']),
        ],
    )
    def test_named(self, text, pieces):
        assert_every_cut(reader(self.named), text, pieces)

    def test_auto_takes_bare_json_for_text(self):
        assert_every_cut(reader(), '{"name": "f"}', ['{"name": "f"}'])


@given(
    st.lists(
        st.sampled_from(["<c>f</c>", "<c>", "</c>", "<t>", "</t>", " ", "\n", "a", "{", "}", "[", '"']),
        max_size=10,
    )
)
def test_any_text_in_any_cut_is_read_alike(parts):
    text = "".join(parts)
    for choice in (ToolChoice(), ToolChoice("required"), ToolChoice("named", "f")):
        assert_every_cut(reader(choice), text)


@given(st.text(max_size=60))
def test_text_without_marks_comes_out_unchanged(text):
    expected = [text] if text else []
    assert assert_every_cut(lambda: OutputReader(Call()), text) == expected


def test_json_arguments_stay_as_they_were_written():
    written = json.dumps({"a": [1, 2.0], "é": "\u00e9"}, indent=1, ensure_ascii=False)
    assert_every_cut(reader(TestDemandedCalls.named), written, [ToolCall("f", written)])
