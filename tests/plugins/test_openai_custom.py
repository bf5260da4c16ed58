"""Freeform tools, read and written: the input that arguments hold, whole and in pieces of every size."""

import json

from hypothesis import given
from hypothesis import strategies as st

from rolltap_plugins.openai_dialects.custom import InputReader, as_arguments, as_function, as_input

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
WRITTEN = st.one_of(
    TEXTS.map(as_arguments),
    TEXTS.map(lambda text: json.dumps({"input": text, "other": [1]})),
    TEXTS.map(lambda text: f'{{ "input" :\n"{text}'),
    TEXTS,
    st.sampled_from(
        ['{"input": "\\ud83d"}', '{"input": "\\u12', '{"input": "\\d\\u00e9\\uZZ"}', '{"inp', ""]
    ),
)


@given(TEXTS)
def test_the_input_survives_the_way_through_arguments(text):
    assert as_input(as_arguments(text)) == text
    assert as_input(json.dumps({"input": text})) == text


@given(WRITTEN, st.lists(st.integers(1, 5), min_size=1))
def test_pieces_add_up_to_the_whole(arguments, sizes):
    reader, pieces, at = InputReader(), [], 0
    while at < len(arguments):
        size = sizes[at % len(sizes)]
        pieces.append(reader.feed(arguments[at : at + size]))
        at += size
    assert "".join([*pieces, reader.finish()]) == as_input(arguments)


def test_an_input_is_given_as_it_is_written():
    reader = InputReader()
    given = [reader.feed(piece) for piece in ('{"input": "*** Be', "gin\\", "n+a", '"}')]
    assert given == ["*** Be", "gin", "\n+a", ""]


def test_line_ends_that_a_model_wrote_raw_are_kept():
    assert as_input('{"input": "a\nb\\nc"}') == "a\nb\nc"


def test_arguments_that_are_something_else_are_the_input():
    assert as_input("*** Begin Patch") == "*** Begin Patch"
    assert as_input('{"patch": "x"}') == '{"patch": "x"}'
    assert as_input("{}") == ""


def test_a_grammar_is_told_in_words_in_either_dialects_form():
    rules = {"syntax": "lark", "definition": "start: /a+/"}
    flat = as_function("f", "Edits.", {"type": "grammar", **rules})
    inside = as_function("f", "Edits.", {"type": "grammar", "grammar": rules})
    assert flat == inside
    assert "start: /a+/" in flat["function"]["description"]
    assert list(flat["function"]["parameters"]["properties"]) == ["input"]
