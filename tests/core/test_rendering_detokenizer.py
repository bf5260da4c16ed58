"""Incremental decoding: however the ids are cut, the text is what the tokenizer decodes the whole to."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from rendering_conversations import Renderers
from rolltap.rendering.codec import Codec
from rolltap.rendering.detokenizer import WindowDetokenizer

RELAXED = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
BYTE_LEVEL, PIECES = "chatml", "mistral"


@pytest.fixture(scope="module")
def renderers(tmp_path_factory):
    return Renderers(tmp_path_factory.mktemp("tokenizers"))


@st.composite
def chunked(draw, size):
    """Ids, any of the vocabulary and some beyond it, cut in pieces."""
    chunks = st.lists(st.lists(st.integers(0, size + 2), max_size=4), max_size=8)
    return draw(chunks)


def joined(detokenizer, chunks):
    return "".join([detokenizer.feed(chunk) for chunk in chunks]) + detokenizer.finish()


def whole(renderer, ids, *, skip):
    shown = [index for index in ids if not (skip and index in renderer.codec.special_ids)]
    while shown and shown[-1] in renderer.end_ids:
        shown.pop()
    return renderer.tokenizer.decode(shown, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("template", [BYTE_LEVEL, PIECES, "glm"])
@RELAXED
@given(data=st.data())
def test_pieces_join_to_the_whole(renderers, template, skip, data):
    renderer = renderers(template)
    chunks = data.draw(chunked(len(renderer.tokenizer)))
    ids = [index for chunk in chunks for index in chunk]
    assert joined(renderer.detokenizer(skip), chunks) == whole(renderer, ids, skip=skip)


@pytest.mark.parametrize("template", [BYTE_LEVEL, PIECES])
@RELAXED
@given(data=st.data())
def test_bytes_in_any_order_join_to_the_whole(renderers, template, data):
    """Bytes that are no UTF-8, real replacement characters and blanks: what decoding in pieces gets wrong."""
    renderer = renderers(template)
    letters = ["Ġ", "ï", "¿", "½", "ä", "A"]
    pieces = ["▁", "<0xEF>", "<0xBF>", "<0xBD>", "<0x20>", "A"]
    tokens = renderer.tokenizer.convert_tokens_to_ids(letters if template == BYTE_LEVEL else pieces)
    ids = data.draw(st.lists(st.sampled_from(tokens), max_size=20))
    assert joined(renderer.detokenizer(), [[index] for index in ids]) == whole(renderer, ids, skip=True)


@pytest.mark.parametrize("template", [BYTE_LEVEL, PIECES])
@RELAXED
@given(text=st.text(max_size=40))
def test_any_text_comes_back(renderers, template, text):
    renderer = renderers(template)
    ids = renderer.encode(text)
    streamed = joined(renderer.detokenizer(), [[index] for index in ids])
    assert streamed == whole(renderer, ids, skip=True)
    # Hypothesis tries texts that it finds in the code, such as a special token's.
    if template == BYTE_LEVEL and not any(token in text for token in renderer.tokenizer.all_special_tokens):
        assert streamed == text


@RELAXED
@given(data=st.data())
def test_the_window_decodes_byte_level_vocabularies_too(renderers, data):
    """What a slow tokenizer would need: no single bytes to be told, only the tokenizer's decode."""
    renderer = renderers(BYTE_LEVEL)
    chunks = data.draw(chunked(len(renderer.tokenizer)))
    detokenizer = WindowDetokenizer(renderer.codec, renderer.codec.special_ids, frozenset())
    ids = [index for chunk in chunks for index in chunk]
    assert joined(detokenizer, chunks) == renderer.tokenizer.decode(ids, skip_special_tokens=True)


def test_a_character_over_several_tokens_is_held_back(renderers):
    renderer = renderers(BYTE_LEVEL)
    ids = renderer.encode("ɸ")
    assert len(ids) == 2
    detokenizer = renderer.detokenizer()
    assert detokenizer.feed(ids[:1]) == ""
    assert detokenizer.feed(ids[1:]) == "ɸ"


def test_an_unfinished_character_is_given_at_the_end(renderers):
    renderer = renderers(BYTE_LEVEL)
    detokenizer = renderer.detokenizer()
    assert detokenizer.feed(renderer.encode("ɸ")[:1]) == ""
    assert detokenizer.finish() == "\N{REPLACEMENT CHARACTER}"


def test_a_run_of_bytes_waits_for_its_end(renderers):
    """One bad byte makes replacement characters of the whole run, the good ones in front of it included."""
    renderer = renderers(PIECES)
    good = renderer.tokenizer.convert_tokens_to_ids(["<0xE4>", "<0xBD>", "<0xA0>"])
    bad = renderer.tokenizer.convert_tokens_to_ids("<0xFF>")
    detokenizer = renderer.detokenizer()
    assert detokenizer.feed(good) == ""
    assert detokenizer.feed([bad]) == ""
    assert detokenizer.finish() == "\N{REPLACEMENT CHARACTER}" * 4


def test_a_blank_behind_skipped_tokens_stays(renderers):
    renderer = renderers(PIECES)
    word = renderer.tokenizer.convert_tokens_to_ids("▁the")
    end = renderer.tokenizer.eos_token_id
    assert joined(renderer.detokenizer(), [[word], [end], [word]]) == "the the"


def test_a_closer_shows_in_the_middle_and_not_at_the_end(renderers):
    renderer = renderers(BYTE_LEVEL)
    end = renderer.codec.id_of("<|im_end|>")
    word = renderer.encode("a")
    detokenizer = renderer.detokenizer(skip_special_tokens=False)
    assert detokenizer.feed([*word, end]) == "a"
    assert detokenizer.feed(word) == "<|im_end|>a"
    assert detokenizer.feed([end, end]) == ""
    assert detokenizer.finish() == ""


@pytest.mark.parametrize(("template", "token"), [(BYTE_LEVEL, "ï"), (PIECES, "<0xEF>"), (PIECES, "▁")])
def test_work_is_linear_also_where_all_is_held_back(renderers, template, token, monkeypatch):
    renderer = renderers(template)
    index = renderer.tokenizer.convert_tokens_to_ids(token)
    worked: list[int] = []
    decode, token_bytes = renderer.codec.decode, renderer.codec.token_bytes
    monkeypatch.setattr(renderer.codec, "decode", lambda ids: worked.append(len(ids)) or decode(ids))
    monkeypatch.setattr(renderer.codec, "token_bytes", lambda one: worked.append(1) or token_bytes(one))
    detokenizer = renderer.detokenizer()
    for _ in range(10_000):
        detokenizer.feed([index])
    detokenizer.finish()
    assert 10_000 <= sum(worked) < 100_000


def test_bytes_of_tokens(renderers):
    codec = renderers(BYTE_LEVEL).codec
    assert (
        b"".join(codec.token_bytes(index) for index in codec.encode("naïve 你<|im_end|>"))
        == "naïve 你<|im_end|>".encode()
    )
    assert codec.token_bytes(10**6) == b""


class SlowTokenizer:
    """What is asked of a tokenizer that has no Rust part."""

    all_special_ids = (0,)

    def __init__(self, fast):
        self._fast = fast
        self.added_tokens_decoder = fast.added_tokens_decoder

    def encode(self, text, *, add_special_tokens):
        return self._fast.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, ids, *, skip_special_tokens, clean_up_tokenization_spaces):
        return self._fast.decode(ids, skip_special_tokens=skip_special_tokens)

    def convert_ids_to_tokens(self, index):
        return self._fast.convert_ids_to_tokens(index)


def test_a_tokenizer_without_a_rust_part(renderers):
    fast = renderers(BYTE_LEVEL)
    codec = Codec(SlowTokenizer(fast.tokenizer))
    ids = codec.encode("naïve 你好<|im_end|>")
    assert ids == fast.encode("naïve 你好<|im_end|>")
    assert codec.decode(ids) == "naïve 你好<|im_end|>"
    detokenizer = WindowDetokenizer(codec, codec.special_ids, frozenset())
    assert joined(detokenizer, [[index] for index in ids]) == "naïve 你好"


def test_a_tokenizer_without_a_decoder_has_no_kinds(renderers, tmp_path):
    tokenizer = Renderers(tmp_path)(BYTE_LEVEL).tokenizer
    assert Codec(tokenizer).decoder_kinds == ["ByteLevel"]
    tokenizer.backend_tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    assert Codec(tokenizer).decoder_kinds == ["Fuse", "Strip"]
