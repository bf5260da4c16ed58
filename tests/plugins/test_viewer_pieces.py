"""Tokens' texts: put together they are the whole text, whatever the tokenizer does with spaces and characters."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from rolltap.testing.tokenizers import FAMILIES
from rolltap_plugins.viewer.pieces import BLOCK, Places, pieces

NAMES = ["chatml", next(name for name, family in FAMILIES.items() if family.pieces)]


@pytest.fixture(scope="module", params=NAMES)
def tokenizer(request, tmp_path_factory):
    return AutoTokenizer.from_pretrained(FAMILIES[request.param].build(tmp_path_factory.mktemp("tokenizer")))


@given(text=st.text(max_size=80))
@settings(deadline=None)
def test_pieces_put_together_are_the_text(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    found = pieces(tokenizer.decode, ids)
    assert len(found) == len(ids)
    assert "".join(found) == tokenizer.decode(ids)


@given(text=st.text(min_size=1, max_size=60), cut=st.integers(min_value=0, max_value=60))
@settings(deadline=None)
def test_a_space_is_kept_where_a_window_begins(tokenizer, text, cut):
    ids = tokenizer.encode(f"The answer is {text}", add_special_tokens=False)
    cut = min(cut, len(ids) - 1)
    whole = pieces(tokenizer.decode, ids)
    if whole[cut]:  # not in the middle of a character
        assert pieces(tokenizer.decode, ids[cut:], ids[:cut]) == whole[cut:]


def test_a_character_of_several_tokens_is_the_first_ones(tokenizer):
    text = "ok 🦕 ok"
    ids = tokenizer.encode(text, add_special_tokens=False)
    found = pieces(tokenizer.decode, ids)
    dinosaur = next(at for at, piece in enumerate(found) if "🦕" in piece)
    assert found[dinosaur + 1] == ""


def test_ids_that_make_no_character_are_shown_as_such(tokenizer):
    ids = tokenizer.encode("🦕", add_special_tokens=False)[:-1]
    assert len(pieces(tokenizer.decode, ids)) == len(ids)


def test_the_token_of_a_character_is_found_beyond_the_first_block(tokenizer):
    line = "It is sunny today, and it will rain tomorrow. "
    ids = tokenizer.encode(line * 120 + "What is the answer?", add_special_tokens=False)
    assert len(ids) > 2 * BLOCK
    places = Places(tokenizer.decode, ids)
    at = places.token_at(places.text.index("What"))
    assert "What" in tokenizer.decode(ids[at : at + 6])
    assert tokenizer.decode(ids[at:]).strip() == "What is the answer?"
