import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltap import TagToolParser, ToolCall, ToolParser
from rolltap.parsing import JsonToolParser, arguments_from_json, as_json, calls_from_json, mark_pattern
from rolltap.parsing.json_text import JsonScanner
from rolltap.parsing.marks import Marks
from rolltap.testing.parsing import assert_every_cut, read_pieces


class Angle(TagToolParser):
    """The docstring's example: a name, and JSON."""

    open, close = "<<", ">>"

    def read(self, block):
        name, arguments = block.split(maxsplit=1)
        return ToolCall(name, arguments)


class Fenced(TagToolParser):
    """Nothing but marks: the block is JSON with a name and arguments."""

    open, close = "[CALL]", "[/CALL]"
    turn_ends = ("<end>",)


class Grouped(TagToolParser):
    open, close = "<c>", "</c>"
    group = ("<all>", "</all>")

    def read(self, block):
        return ToolCall(block) if block.isalpha() else None


class Counted(JsonToolParser):
    """A name before the JSON, in groups."""

    open, close = "<c>", "</c>"
    group = ("<all>", "</all>")
    head_pattern = rf"[a-z]{{0,8}}+{mark_pattern('<sep>')}?"

    def read(self, block):
        name, separator, _ = self.head.partition("<sep>")
        return ToolCall(name, block) if separator and name else None


class TestTagToolParser:
    def test_an_author_writes_marks_and_how_to_read_a_block(self):
        assert_every_cut(
            Angle,
            'a < b <<add {"x": 1}>> and <<sub {"y": 2}>>.',
            ["a < b ", ToolCall("add", '{"x": 1}'), " and ", ToolCall("sub", '{"y": 2}'), "."],
        )

    def test_a_block_that_cannot_be_read_stays_content_and_spoils_no_other(self):
        assert_every_cut(Angle, "<<broken>> <<add {}>>", ["<<broken>> ", ToolCall("add", "{}")])

    def test_a_block_inside_which_another_begins_is_content(self):
        assert_every_cut(Angle, "1 << 2, <<add {}>>", ["1 << 2, ", ToolCall("add", "{}")])

    @pytest.mark.parametrize("text", ["", "<", "x <<", "x <<add {", "<<add {}>", "plain"])
    def test_what_was_held_back_comes_out_at_the_end(self, text):
        assert_every_cut(Angle, text, [text] if text else [])

    def test_without_a_read_of_its_own_it_reads_json(self):
        assert_every_cut(
            Fenced,
            'Hi [CALL] {"name": "f", "arguments": {"at": "[/CALL]"}} [/CALL]<end>\n',
            ["Hi ", ToolCall("f", '{"at": "[/CALL]"}')],
        )

    def test_json_that_is_whole_counts_where_only_its_closing_mark_was_cut_off(self):
        assert_every_cut(Fenced, '[CALL]{"name": "f"}[/CA', [ToolCall("f")])
        assert_every_cut(Fenced, '[CALL]{"name": "f"', ['[CALL]{"name": "f"'])

    def test_a_forgotten_quote_costs_its_own_block_alone(self):
        broken = '[CALL]{"name": "f", "arguments": {"x": "y}}[/CALL]'
        assert_every_cut(Fenced, broken + '[CALL]{"name": "g"}[/CALL]', [broken, ToolCall("g")])

    def test_blocks_in_groups_and_alone(self):
        assert_every_cut(
            Grouped,
            "a<all> <c>f</c><c>g</c> </all>b<c>h</c><all>i<c>1</c>",
            ["a", ToolCall("f"), ToolCall("g"), "b", ToolCall("h"), "<all>i<c>1</c>"],
        )

    def test_a_call_quoted_in_closed_thinking_is_content(self):
        assert_every_cut(
            Grouped, "<think><c>f</c></think><c>g</c>", ["<think><c>f</c></think>", ToolCall("g")]
        )
        assert_every_cut(Grouped, "<think><c>f</c>.", ["<think>", ToolCall("f"), "."])

    def test_end_of_turn_marks_are_dropped_at_the_very_end_only(self):
        assert_every_cut(Fenced, "a<end> b<end>\n<end>", ["a<end> b"])

    def test_marks_that_contain_each_other_are_refused(self):
        with pytest.raises(ValueError, match="part of another"):
            Marks("<a>", "<<a>>")

    @given(
        st.lists(st.sampled_from(["<<", ">>", "<", ">", "add", " ", '{"x": 1}', "{", '"', "\n"]), max_size=12)
    )
    def test_any_text_in_any_cut_is_read_alike(self, parts):
        assert_every_cut(Angle, "".join(parts))

    @given(st.text(alphabet="<c>/al fg1", max_size=40))
    def test_groups_in_any_cut_are_read_alike(self, text):
        assert_every_cut(Grouped, text)


class TestJsonToolParser:
    def test_a_name_before_the_json(self):
        assert_every_cut(
            Counted,
            'a<all><c>f<sep>{"x": 1}</c><c>g<sep>{}</all> b',
            ["a", ToolCall("f", '{"x": 1}'), ToolCall("g", "{}"), " b"],
        )

    def test_braces_too_many_are_dropped_and_a_run_that_goes_on_is_content_at_once(self):
        call = '<c>f<sep>{"x": 1}'
        read = ToolCall("f", '{"x": 1}')
        assert_every_cut(Counted, call + "}}]</c>b", [read, "b"])
        assert_every_cut(Counted, call + "}" * 40 + "</c>", [read, "}" * 40 + "</c>"])
        parser = Counted()
        given = [piece for text in (call, *["}}}"] * 1000) for piece in parser.feed(text)]
        assert given[0] == read
        assert "".join(given[1:]) == "}" * 3000

    def test_a_head_that_is_none_makes_the_mark_content(self):
        assert_every_cut(Counted, "<c>f? <c>F<sep>{}</c> <c>{}", ["<c>f? <c>F<sep>{}</c> <c>{}"])

    @given(
        st.lists(
            st.sampled_from(
                ["<all>", "</all>", "<c>", "</c>", "f", "<sep>", "{}", '{"x": ', "1", "}", " ", "["]
            ),
            max_size=12,
        )
    )
    def test_any_text_in_any_cut_is_read_alike(self, parts):
        assert_every_cut(Counted, "".join(parts))


class Bare(JsonToolParser):
    open = "[CALL]"
    bare = True


class TestBareJson:
    @pytest.mark.parametrize(
        ("text", "pieces"),
        [
            (' {"name": "f"}', [ToolCall("f")]),
            ('[{"name": "f"}] [CALL]{"name": "g"}', [ToolCall("f"), " ", ToolCall("g")]),
            ('[CALL]{"name": "f"}', [ToolCall("f")]),
            ("[CAL", ["[CAL"]),
            ('a {"name": "f"}', ['a {"name": "f"}']),
        ],
    )
    def test_an_output_that_begins_with_json_is_a_block(self, text, pieces):
        assert_every_cut(Bare, text, pieces)

    def test_a_call_after_its_mark_is_given_as_soon_as_its_json_is_whole(self):
        assert list(Bare().feed('[CALL]{"name": "f"}')) == [ToolCall("f")]


class TestAsJson:
    @pytest.mark.parametrize(
        ("written", "meant"),
        [
            ('{"a": 1.50, "b": 1e400}', '{"a": 1.50, "b": 1e400}'),
            ("{'a': True, 'b': [None, False,],}", '{"a": true, "b": [null, false]}'),
            ('{"a": "x\ny\t"}', '{"a": "x\\ny\\t"}'),
            ("{'a': 'it\\'s \"so\"'}", '{"a": "it\'s \\"so\\""}'),
            ("{'a': '\\x41'}", '{"a": "A"}'),
            ('{"a": "\\d+"}', '{"a": "\\\\d+"}'),
            ('{"a": "True, None,]"}', '{"a": "True, None,]"}'),
        ],
    )
    def test_one_meaning_is_written_as_json(self, written, meant):
        assert as_json(written)[0] == meant

    @pytest.mark.parametrize(
        "text", ["", "{", "{a: 1}", '{"a": NaN}', "('a',)", '{"a": "\\x4"}', "[" * 5000, "{'a': '\\a'}"]
    )
    def test_what_has_no_one_meaning_is_refused(self, text):
        with pytest.raises(ValueError):
            as_json(text)

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        )
    )
    def test_python_literals_mean_what_they_say(self, value):
        assert as_json(repr(value))[1] == value

    def test_an_integer_too_long_for_int_is_kept_as_it_is_written(self):
        digits = "9" * 5000
        assert calls_from_json(f'{{"name": "f", "arguments": {{"n": {digits}}}}}') == [
            ToolCall("f", f'{{"n": {digits}}}')
        ]


class TestCallsFromJson:
    @pytest.mark.parametrize(
        ("text", "calls"),
        [
            ('{"name": "f", "arguments": {"x":  1}}', [("f", '{"x":  1}')]),
            ('{"parameters": {"name": "no"}, "name": "f"}', [("f", '{"name": "no"}')]),
            ('{"name": "f", "arguments": "{\\"x\\": 1}"}', [("f", '{"x": 1}')]),
            ('{"name": "f", "arguments": null, "id": "1"}', [("f", "{}")]),
            ('{"type": "function", "function": {"name": "f", "arguments": "{}"}}', [("f", "{}")]),
            ('[{"name": "f"}, {"name": "g"}]', [("f", "{}"), ("g", "{}")]),
        ],
    )
    def test_what_models_write_for_a_call(self, text, calls):
        assert calls_from_json(text) == [ToolCall(name, arguments) for name, arguments in calls]

    @pytest.mark.parametrize(
        "text",
        [
            "7", "[]", "{}", '{"name": 1}', '{"name": ""}', '{"name": "f", "arguments": 3}', '{"name": "f", "x": 1}',
            '{"name": "f", "arguments": "{\\"x\\": "}', '[{"name": "f"}, 3]', '{"name": "\\ud800"}',
        ],
    )  # fmt: skip
    def test_what_is_no_call(self, text):
        assert calls_from_json(text) is None

    def test_half_a_character_inside_a_string_is_escaped_again(self):
        assert arguments_from_json('"{\\"x\\": \\"\\ud83d\\"}"') == '{"x": "\\ud83d"}'


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).filter(lambda value: isinstance(value, dict | list)),
    st.sampled_from([None, 2]),
    st.integers(1, 5),
)
def test_the_scanner_finds_the_end_of_all_json(value, indent, size):
    text = json.dumps(value, indent=indent)
    scanner = JsonScanner()
    tail = text + ' {"more": 1}'
    for start in range(0, len(tail), size):
        if scanner.feed(tail[start : start + size]):
            break
    assert scanner.end == len(text)


@given(st.text(alphabet="{}[]:,\"'\\ 1te", max_size=30), st.integers(1, 4))
def test_the_scanner_decides_by_the_text_alone(text, size):
    def decide(pieces):
        scanner = JsonScanner()
        for number, piece in enumerate(pieces):
            if scanner.feed(piece, last=number == len(pieces) - 1):
                break
        return scanner.end, scanner.failed_at, scanner.string

    text = "{" + text
    assert decide([text]) == decide([text[start : start + size] for start in range(0, len(text), size)])


class Forgetful(ToolParser):
    """A parser whose result depends on the cut."""

    def feed(self, text):
        return [ToolCall("seen")] if "<call>" in text else [text]

    def finish(self):
        return []


def test_assert_every_cut_tells_the_cut_and_both_readings():
    with pytest.raises(AssertionError, match=r"(?s)cut into \['<', 'c'.*'<call>'.*but whole as.*name='seen'"):
        assert_every_cut(Forgetful, "<call>")
    with pytest.raises(AssertionError, match=r"(?s)was read as.*and not as\n    'other'"):
        assert_every_cut(Angle, "text", ["other"])
    assert read_pieces(Angle(), ["te", "", "xt"]) == ["text"]
