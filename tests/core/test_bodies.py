"""Bodies of one session: what was sent before is the same object, and what is read is what a fresh reading finds."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltap import BadRequest, ReadBefore
from rolltap.bodies import Bodies, parse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.dictionaries(
    st.sampled_from(["messages", "tools", "model"]), st.lists(VALUES, max_size=5) | VALUES
)


def sent(*messages, **fields) -> bytes:
    return orjson.dumps({"messages": messages, **fields})


@given(st.lists(FIELDS, max_size=8))
def test_bodies_are_read_as_if_each_came_alone(bodies):
    reader = Bodies()
    for body in bodies:
        data = json.dumps(body).encode()
        assert reader.parse(data) == parse(data)


def test_repeated_entries_are_the_same_objects():
    reader = Bodies()
    first = reader.parse(sent({"content": "a"}, {"content": "b"}))["messages"]
    second = reader.parse(sent({"content": "a"}, {"content": "b"}, {"content": "c"}))["messages"]
    assert second[0] is first[0]
    assert second[1] is first[1]
    assert second[2] == {"content": "c"}


def test_values_that_python_calls_equal_are_not_taken_for_each_other():
    reader = Bodies()
    for value in (1, True, 1.0):
        read = reader.parse(sent({"input": value}))["messages"][0]["input"]
        assert type(read) is type(value)


def test_conversations_that_take_turns_are_both_known():
    reader = Bodies()
    main = reader.parse(sent({"content": "main"}))["messages"]
    helper = reader.parse(sent({"content": "helper"}))["messages"]
    assert reader.parse(sent({"content": "main"}, {}))["messages"][0] is main[0]
    assert reader.parse(sent({"content": "helper"}, {}))["messages"][0] is helper[0]


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b'{"a": 1,}', b'{"messages": [1, nul]}', b'{"a": "\\ud800"}', b"\xff"]
)
def test_a_wrong_body_is_refused_as_outside_of_a_session(data):
    with pytest.raises(BadRequest) as alone:
        parse(data)
    reader = Bodies()
    reader.parse(sent(1))
    with pytest.raises(BadRequest) as within:
        reader.parse(data)
    assert within.value.info == alone.value.info


def test_a_body_that_is_nested_too_deep_is_refused():
    deep = b"[" * 300 + b"]" * 300
    for data in (b'{"messages": [1, %b]}' % deep, b'{"model": {"a": %b}}' % deep):
        with pytest.raises(BadRequest, match="can't be handled"):
            Bodies().parse(data)


class TestReadBefore:
    def test_as_much_as_an_earlier_list_began_with(self):
        before = ReadBefore()
        one, two, three = {"a": 1}, {"a": 2}, {"a": 3}
        before.keep("messages", [one, two], ["one", "two"])
        assert list(before.known("messages", [one, two, three])) == ["one", "two"]
        assert list(before.known("messages", [one, three])) == ["one"]
        assert list(before.known("tools", [one])) == []

    def test_an_equal_object_is_another_one(self):
        before = ReadBefore()
        before.keep("messages", [{"a": 1}], ["one"])
        assert list(before.known("messages", [{"a": True}])) == []

    def test_what_is_no_list_is_not_known(self):
        before = ReadBefore()
        before.keep("messages", [1], ["one"])
        assert list(before.known("messages", None)) == []
