import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltap import Reasoning
from rolltap.testing import assert_every_cut
from rolltap_plugins.think import ThinkParser, reasoning_parser


def opened_by(prompt_tail):
    def make():
        parser = ThinkParser()
        parser.call_marks = ("<tool_call>",)
        parser.begin(prompt_tail)
        return parser

    return make


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("<think>\nhm\n\nyes\n</think>\n\nDone.\n", [Reasoning("hm\n\nyes"), "Done.\n"]),
        ("\n <think>hm</think>Done.", [Reasoning("hm"), "Done."]),
        ("<think>\n\n</think>\n\nDone.", ["Done."]),
        ("<think>a</think>\n<think>b</think>\nc", [Reasoning("a\nb"), "c"]),
        ("<think>never closed\n", [Reasoning("never closed")]),
        ("Use <think>x</think> so.", ["Use <think>x</think> so."]),
        ("hm</think>Done.", ["hm</think>Done."]),
        ("<thin", ["<thin"]),
        ("<think>a</thi", [Reasoning("a</thi")]),
        ("<think>a <tool_call>b</think>c", [Reasoning("a <tool_call>b"), "c"]),
        ("<think>a\n<tool_call>b", [Reasoning("a"), "<tool_call>b"]),
    ],
)
def test_thinking_that_the_model_opens(text, pieces):
    assert_every_cut(opened_by("<|im_start|>assistant\n"), text, pieces)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("hm\n</think>\n\nDone.", [Reasoning("hm"), "Done."]),
        ("<think>\nhm</think>Done.", [Reasoning("hm"), "Done."]),
        ("never closed", [Reasoning("never closed")]),
        ("</think>Done.", ["Done."]),
        ("", []),
    ],
)
def test_thinking_that_the_prompt_opened(text, pieces):
    assert_every_cut(opened_by("<|Assistant|><think>\n"), text, pieces)


def test_thinking_that_the_prompt_closed_again_is_over():
    assert_every_cut(opened_by("<think>\n\n</think>\n\n"), "Done.", ["Done."])


@pytest.mark.parametrize("name", reasoning_parser)
def test_each_name_has_its_marks(name):
    parser = reasoning_parser[name]
    assert_every_cut(parser, f"{parser.open}a{parser.close}b", [Reasoning("a"), "b"])


@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "<tool_call>", "<th", "a", "\n", " ", "<"]), max_size=12
    ),
    st.sampled_from(["", "<think>\n"]),
)
def test_any_text_in_any_cut_is_read_alike_and_nothing_is_lost(parts, prompt_tail):
    text = "".join(parts)
    pieces = assert_every_cut(opened_by(prompt_tail), text)
    said = "".join(piece if isinstance(piece, str) else piece.text for piece in pieces)

    def bare(text):
        return "".join(text.replace("<think>", "").replace("</think>", "").split())

    assert bare(said) == bare(text)
