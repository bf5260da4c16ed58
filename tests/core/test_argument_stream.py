"""Arguments in fragments: the same calls as without, sooner, and nothing that has to be taken back."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltap import ToolCall
from rolltap.parsing import CallFragment, as_json
from rolltap.parsing.argument_stream import ArgumentStream
from rolltap.reading import OutputReader
from rolltap.testing.parsing import assert_every_cut, read_pieces
from rolltap_plugins.hermes import HermesToolParser
from written_calls import FORMATS

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=8), values, max_size=4)
STREAMING = ["hermes", "llama3_json", "mistral-v11", "deepseek_v3", "deepseek_v31", "kimi_k2"]


def fragments_of(pieces):
    stream = ArgumentStream()
    given_now = [stream.feed(piece) for piece in pieces]
    assert stream.given == "".join(given_now)
    return given_now


def cut(text, places):
    return [
        text[start:end] for start, end in zip([0, *sorted(places)], [*sorted(places), len(text)], strict=True)
    ]


def streaming(name):
    def make():
        parser = FORMATS[name].read()
        parser.stream_arguments = True
        return parser

    return make


@given(objects, st.booleans(), st.sampled_from([None, 2]), st.data())
def test_json_is_given_in_full_and_nothing_behind_it(value, ascii_only, indent, data):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    assert "".join(fragments_of(cut(text + '}, "more": {', places))) == text


PARTS = [
    '"',
    "'",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    " ",
    "\n",
    "True",
    "true",
    "None",
    "1",
    "-1.5e3",
    "\\",
    "\\n",
    "\\'",
    "a",
    "é",
]


@given(st.lists(st.sampled_from(PARTS), max_size=14), st.data())
def test_what_is_given_is_how_the_repaired_object_begins(parts, data):
    text = '{"a": ' + "".join(parts) + "}"
    try:
        whole, value = as_json(text)
    except ValueError:
        return
    assert isinstance(value, dict)
    pieces = cut(text, data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    assert whole.startswith("".join(fragments_of(pieces)))


def test_text_inside_a_string_comes_as_it_is_written():
    assert fragments_of(['{"text": "on', "e two", " \\", "n\\u00", 'e9"', "}", " more"]) == [
        '{"text": "on', "e two", " ", "\\n", '\\u00e9"', "}", ""
    ]  # fmt: skip


@pytest.mark.parametrize("name", STREAMING)
@given(data=st.data())
def test_the_calls_are_those_without_fragments(name, data):
    calls = data.draw(st.lists(st.tuples(st.sampled_from(["f", "get_x"]), objects), max_size=2))
    text = FORMATS[name].write("", calls)
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    pieces = cut(text, places)
    whole = read_pieces(OutputReader(FORMATS[name].read()), [text])
    reader = OutputReader(streaming(name)())
    came = [item for piece in pieces for item in reader.feed(piece)] + reader.finish()
    assert all(isinstance(item, CallFragment) for item in came if isinstance(item, ToolCall))
    assert read_pieces(OutputReader(streaming(name)()), pieces) == whole
    assert len([item for item in came if item.name]) == len(calls)


@pytest.mark.parametrize("name", STREAMING)
def test_fragments_come_while_the_arguments_are_written(name):
    text = FORMATS[name].write("", [("f", {"text": "word " * 50})])
    reader = OutputReader(streaming(name)())
    came = [item for char in text for item in reader.feed(char)]
    assert len(came) > 200
    assert came[0].name == "f"
    assert not any(item.name for item in came[1:])


def hermes(arguments, more=""):
    return f'<tool_call>{{"name": "f", "arguments": {arguments}{more}'


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        # Whole calls, as without fragments.
        (hermes('{"a": 1}', "}</tool_call> Done."), [ToolCall("f", '{"a": 1}'), " Done."]),
        (hermes('{"a": 1}', "</tool_call>"), [ToolCall("f", '{"a": 1}')]),
        (hermes("{'a': True, }", "}</tool_call>"), [ToolCall("f", '{"a": true }')]),
        (hermes('{"a": "x\ny"}', "}"), [ToolCall("f", '{"a": "x\\ny"}')]),
        ('<tool_call>{"arguments": {}, "name": "f"}', [ToolCall("f")]),
        ('<tool_call>[{"name": "f", "arguments": {}}]', [ToolCall("f")]),
        (hermes('"{\\"a\\": 1}"', "}"), [ToolCall("f", '{"a": 1}')]),
        # Cut off or broken: what was given stands.
        (hermes('{"a": "wor'), [ToolCall("f", '{"a": "wor')]),
        (hermes('{"a": 1, "b'), [ToolCall("f", '{"a": 1, "b')]),
        (hermes('{"a": 1 2}', "}</tool_call>b"), [ToolCall("f", '{"a": 1 '), "2}}</tool_call>b"]),
        (hermes('{"a": 1}', ', "name": "g"}</tool_call>'), [ToolCall("f", '{"a": 1}')]),
        # Not yet certain, so content as ever.
        ('<tool_call>{"name": "f", "argu', ['<tool_call>{"name": "f", "argu']),
        (hermes("["), [hermes("[")]),
    ],
)  # fmt: skip
def test_hermes_in_every_cut(text, pieces):
    assert_every_cut(streaming("hermes"), text, pieces)


MARKUP = [
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", "arguments": {',
    '"a": ',
    "'b'",
    "1",
    "}",
    ",",
    "]",
    "text",
    "\n",
    '"',
]


@given(st.lists(st.sampled_from(MARKUP), max_size=12))
def test_any_text_in_any_cut_is_read_alike(parts):
    assert_every_cut(streaming("hermes"), "".join(parts))


def test_the_cost_is_linear():
    def cost(size):
        text = hermes(json.dumps({"text": "word, " * (size // 6)}), "}</tool_call>")
        parser = HermesToolParser()
        parser.stream_arguments = True
        start = time.process_time()
        for place in range(0, len(text), 4):
            parser.feed(text[place : place + 4])
        parser.finish()
        return time.process_time() - start

    cost(1000)
    assert cost(400_000) < 10 * max(cost(100_000), 0.02)
