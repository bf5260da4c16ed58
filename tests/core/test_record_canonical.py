"""A fingerprint changes with what was said, and with nothing else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltap import ImagePart, Message, TextPart, ToolCall
from rolltap.record import canonical
from rolltap.record.definitions import Definitions

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def call(arguments: str, name: str = "search", call_id: str = "call_1") -> Message:
    return Message(role="assistant", tool_calls=[ToolCall(name=name, arguments=arguments, id=call_id)])


def same(one: Message, other: Message) -> bool:
    start = canonical.digest(b"m")
    return canonical.chain_next(start, canonical.fingerprint(one)) == canonical.chain_next(
        start, canonical.fingerprint(other)
    )


@pytest.mark.parametrize(
    ("sent_back", "produced"),
    [
        (Message(role="assistant", content=None), Message(role="assistant", content="")),
        (Message(role="assistant", content=[TextPart("Hi")]), Message(role="assistant", content="Hi")),
        (Message(role="assistant", content=" Hi\n"), Message(role="assistant", content="Hi")),
        (Message(role="assistant", content="Hi"), Message(role="assistant", content="Hi", reasoning="Hm.")),
        (
            Message(role="assistant", content="Hi"),
            Message(role="assistant", content="<think>\nHm.\n</think>\n\nHi"),
        ),
        (Message(role="assistant", content="Hi"), Message(role="assistant", content="Hm.\n</think>\n\nHi")),
        (call('{"b": 1, "a": [1.0]}'), call('{"a":[1],"b":1}', call_id="")),
        (call('{"x": "\\u00e9"}'), call('{"x": "é"}')),
        (call(""), call("{}")),
        (Message(role="developer", content="Be brief."), Message(role="system", content="Be brief.")),
        (
            Message(role="tool", content="12", tool_call_id="call_1"),
            Message(role="tool", content=[TextPart("12")], tool_call_id="toolu_9", name="search"),
        ),
    ],
)
def test_a_clients_changes_of_form_do_not_count(sent_back, produced):
    assert same(sent_back, produced)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Message(role="user", content="a"), Message(role="user", content="b")),
        (Message(role="user", content="a"), Message(role="assistant", content="a")),
        (Message(role="user", content="a b"), Message(role="user", content="a  b")),
        (call('{"a": 1}'), call('{"a": 2}')),
        (call('{"a": 1}'), call('{"a": true}')),
        (call("{}"), call("{}", name="find")),
        (call("not json"), call("not  json")),
        (
            Message(role="user", content=[TextPart("a"), ImagePart("http://x/1.png")]),
            Message(role="user", content=[TextPart("a"), ImagePart("http://x/2.png")]),
        ),
    ],
)
def test_what_was_said_counts(one, other):
    assert not same(one, other)


@given(JSON)
def test_arguments_may_be_written_in_any_way(value):
    compact = json.dumps({"v": value}, separators=(",", ":"), ensure_ascii=False)
    spelled = json.dumps({"v": value}, indent=3, ensure_ascii=True)
    assert same(call(compact), call(spelled))


@given(st.text())
def test_any_text_has_a_fingerprint(text):
    assert same(Message(role="user", content=text), Message(role="user", content=f"  {text}\n"))


def test_lone_surrogates_have_a_fingerprint():
    assert not same(Message(role="user", content="\ud83d"), Message(role="user", content="\ud83e"))


def context(model, tools, template_kwargs):
    definitions = Definitions()
    found, new = definitions.context(model, tools, template_kwargs)
    return definitions.canonical(found, new)


def test_the_order_of_tools_and_of_their_keys_does_not_count():
    a = {"type": "function", "function": {"name": "a", "parameters": {"type": "object", "properties": {}}}}
    a_turned = {
        "function": {"parameters": {"properties": {}, "type": "object"}, "name": "a"},
        "type": "function",
    }
    b = {"type": "function", "function": {"name": "b"}}
    assert context("m", [a, b], {}) == context("m", [b, a_turned], {})
    assert context("m", [a], {}) != context("m", [a, b], {})
    assert context("m", [a], {}) != context("n", [a], {})
    assert context("m", [], {"x": 1}) != context("m", [], {"x": 2})


def test_the_chain_stands_for_every_message_before():
    start = canonical.digest(b"m")
    words = [canonical.fingerprint(Message(role="user", content=word)) for word in ("a", "b", "c")]
    other = [canonical.fingerprint(Message(role="user", content=word)) for word in ("x", "b", "c")]
    assert canonical.chain(start, words)[:2] == canonical.chain(start, words[:2])
    assert not set(canonical.chain(start, words)) & set(canonical.chain(start, other))
