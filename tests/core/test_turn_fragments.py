"""Tool calls in pieces: whatever order and numbering an upstream has, the client gets them in order, named, once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltap import ToolCall, ToolCallDelta, UpstreamError
from rolltap.turns.fragments import CallFragments


def played(*fragments):
    calls = CallFragments()
    sent = [piece for fragment in fragments for piece in calls.take(fragment)]
    return [*sent, *calls.finish()]


def joined(sent):
    """name and arguments of each call; and see that each begins with its name and id, and only so."""
    found = {}
    for piece in sent:
        if piece.index not in found:
            assert piece.index == len(found)
            assert piece.name
            assert piece.id
            found[piece.index] = [piece.name, piece.arguments]
        else:
            assert piece.name is None
            assert piece.id is None
            found[piece.index][1] += piece.arguments
    return [tuple(call) for call in found.values()]


def delta(index, arguments="", name=None, call_id=None):
    return ToolCallDelta(index=index, id=call_id, name=name, arguments=arguments)


@pytest.mark.parametrize(
    ("fragments", "calls"),
    [
        ([delta(0, '{"a"', "f", "x"), delta(0, ": 1}")], [("f", '{"a": 1}')]),
        (
            [delta(0, "", "f", "x"), delta(1, "", "g", "y"), delta(0, "{1"), delta(1, "{2"), delta(0, "}")],
            [("f", "{1}"), ("g", "{2")],
        ),
        ([delta(0, '{"', "", "x"), delta(0, 'a": 1}', "f")], [("f", '{"a": 1}')]),
        ([delta(3, "{}", "f", "x"), delta(7, "{}", "g", "y")], [("f", "{}"), ("g", "{}")]),
        ([delta(0, "{}", "f", "x"), delta(0, "{}", "g", "y")], [("f", "{}"), ("g", "{}")]),
        ([ToolCall("f", "{}"), ToolCall("g", "{}")], [("f", "{}"), ("g", "{}")]),
        ([delta(0, "{1", "f", "x"), delta(0, "}", "f", "x")], [("f", "{1}")]),
        ([delta(0, "", "f")], [("f", "{}")]),
        ([delta(0, "", "f", "x"), delta(0, "{1}", "g", "y")], [("f", "{}"), ("g", "{1}")]),
        ([ToolCall("f", "")], [("f", "{}")]),
    ],
    ids=[
        "plain",
        "interleaved",
        "late name",
        "gaps",
        "all numbered 0",
        "whole",
        "name repeated",
        "no id",
        "none, then another",
        "whole, none",
    ],
)
def test_calls_come_out_in_order(fragments, calls):
    assert joined(played(*fragments)) == calls


def test_a_call_without_a_name_is_an_error_and_not_lost():
    with pytest.raises(UpstreamError, match="without a name"):
        played(delta(0, "{}"))


@given(st.lists(st.text(max_size=12), min_size=1, max_size=4), st.randoms())
def test_any_interleaving_gives_the_same_calls(arguments, rng):
    queues = {}
    for number, text in enumerate(arguments):
        cut = rng.randint(0, len(text))
        queues[number] = [
            delta(number * 2, "", f"f{number}", f"id{number}"),
            delta(number * 2, text[:cut]),
            delta(number * 2, text[cut:]),
        ]
    fragments = [queue.pop(0) for queue in queues.values()]
    while any(queues.values()):
        fragments.append(rng.choice([queue for queue in queues.values() if queue]).pop(0))
    assert joined(played(*fragments)) == [
        (f"f{number}", text or "{}") for number, text in enumerate(arguments)
    ]


@pytest.mark.parametrize("whole", [True, False])
def test_an_id_that_is_taken_is_replaced(whole):
    calls = CallFragments({"call_0"})
    sent = []
    for index, came in enumerate(["call_0", "call_1", "call_1"]):
        call = ToolCall("f", "{}", came) if whole else delta(index, "{}", "f", came)
        (begun,) = calls.take(call)
        sent.append(begun.id)
    assert sent[1] == "call_1"
    assert len({*sent, "call_0"}) == 4
