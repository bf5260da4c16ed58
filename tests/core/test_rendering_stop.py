"""Stop strings: cut at the first that is complete, however the text comes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltap.errors import BadRequest
from rolltap.rendering import StopStrings

LETTERS = st.text("ab\n", max_size=12)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4)


def first_stop(text, stops):
    """By trying every beginning of the text: the first that ends in a stop string, and the longest such string."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(pieces=st.lists(LETTERS, max_size=6), stops=STOPS)
def test_any_cut_gives_the_same(pieces, stops):
    finder = StopStrings(stops)
    given_out, matched = "", None
    for piece in pieces:
        text, matched = finder.feed(piece)
        given_out += text
    given_out += finder.finish()
    assert (given_out, matched) == first_stop("".join(pieces), stops)
    assert finder.matched == matched


def test_only_what_may_become_a_stop_string_is_held_back():
    finder = StopStrings(["</answer>"])
    assert finder.feed("The end </") == ("The end ", None)
    assert finder.feed("b></ans") == ("</b>", None)
    assert finder.feed("wer> more") == ("", "</answer>")
    assert finder.feed("ignored") == ("", "</answer>")
    assert finder.finish() == ""


def test_the_end_gives_what_was_held_back():
    finder = StopStrings(["stop"])
    assert finder.feed("almost sto") == ("almost ", None)
    assert finder.finish() == "sto"


def test_an_empty_stop_string_is_refused():
    with pytest.raises(BadRequest, match="must not be empty") as caught:
        StopStrings(["x", ""])
    assert caught.value.info.param == "stop"
