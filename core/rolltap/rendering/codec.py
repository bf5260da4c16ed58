"""Encoding and decoding with one tokenizer."""

import json
from collections.abc import Collection
from typing import Any, NamedTuple


class TokenSpan(NamedTuple):
    """Where a token's text stands in a longer text."""

    id: int
    start: int
    stop: int


class Codec:
    """Encodes and decodes with one tokenizer; safe to use from several threads.

    Where the tokenizer is a fast one, its Rust part is called directly and by its batch functions, because only
    these let other threads run meanwhile (a 400k-token text blocked the event loop for 0.6 s otherwise).
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None:
            # Stored in some tokenizer.json files, and meant for training.
            self._backend.no_truncation()
            self._backend.no_padding()
        self._added: dict[str, int] = {
            token.content: index for index, token in tokenizer.added_tokens_decoder.items()
        }
        self._texts = {index: text for text, index in self._added.items()}
        self.decoder_kinds = _decoder_kinds(self._backend)
        self.byte_level = self.decoder_kinds == ["ByteLevel"]
        self._bytes: dict[int, bytes] = {}
        self.special_ids = frozenset(
            index for index, token in tokenizer.added_tokens_decoder.items() if token.special
        ) | frozenset(tokenizer.all_special_ids)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids. Special tokens are recognised in the text, wherever they come from.

        That is what transformers and the engines' own chat endpoints do by default: text of a user that spells a
        special token becomes that token. The record shows it, and is exact either way.
        """
        if self._backend is None:
            ids: list[int] = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
            return ids
        batch = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        fast_ids: list[int] = batch[0].ids
        return fast_ids

    def encode_after(self, last_id: int, text: str) -> list[int]:
        """Token ids of a text that follows a sequence ending in `last_id`.

        Encoded behind a special token, so that what a tokenizer does to the beginning of a text (sentencepiece's
        leading space) or after a special token (stripped blanks) comes out as it does in the middle of one.
        """
        anchor = self._texts.get(last_id) or getattr(self.tokenizer, "eos_token", None) or ""
        anchor_ids = self.encode(anchor) if anchor else []
        ids = self.encode(anchor + text)
        if len(anchor_ids) == 1 and ids[:1] == anchor_ids:
            return ids[1:]
        return self.encode(text)

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """The text of the ids, special tokens shown unless they are to be skipped."""
        if self._backend is None:
            text: str = self.tokenizer.decode(
                ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
            )
            return text
        fast_text: str = self._backend.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0]
        return fast_text

    def token(self, index: int) -> str | None:
        """The vocabulary's entry for an id, as it is stored; None for an id outside the vocabulary."""
        if self._backend is None:
            piece: str | None = self.tokenizer.convert_ids_to_tokens(index)
            return piece
        fast_piece: str | None = self._backend.id_to_token(index)
        return fast_piece

    def text_of(self, index: int) -> str | None:
        """The text of an added token (special ones among them); None for any other id."""
        return self._texts.get(index)

    def id_of(self, text: str) -> int | None:
        """The id of an added token; None for any other text."""
        return self._added.get(text)

    def token_bytes(self, index: int) -> bytes:
        """The bytes of one token; b"" for an id outside the vocabulary.

        Of a byte-level vocabulary these are exact, whatever stands beside the token; an added token, which may have
        letters outside the byte alphabet, stands for its own text. Of any other vocabulary: the text's bytes.
        """
        known = self._bytes.get(index)
        if known is None:
            known = self._bytes[index] = self._find_bytes(index)
        return known

    def _find_bytes(self, index: int) -> bytes:
        token = self.token(index)
        if token is None:
            return b""
        if not self.byte_level:
            return self.decode([index]).encode()
        try:
            return bytes([_BYTES[letter] for letter in token])
        except KeyError:
            return token.encode()

    def special_spans(self, text: str) -> list[TokenSpan]:
        """Where the special tokens stand in a text, in order."""
        return self._spans(text, self.special_ids)

    def added_spans(self, text: str) -> list[TokenSpan]:
        """Where the added tokens stand in a text, special or not, in order."""
        return self._spans(text, self._texts)

    def _spans(self, text: str, wanted: Collection[int]) -> list[TokenSpan]:
        spans, position = [], 0
        for index in self.encode(text) if text else []:
            token = self._texts.get(index)
            # Tokens of white space alone say nothing about where a turn ends.
            if token and token.strip() and index in wanted and (start := text.find(token, position)) >= 0:
                position = start + len(token)
                spans.append(TokenSpan(index, start, position))
        return spans


def _decoder_kinds(backend: Any) -> list[str]:
    """The steps of a fast tokenizer's decoder, by name; empty for another tokenizer."""
    decoder = None if backend is None else backend.decoder
    if decoder is None:
        return []
    state = json.loads(decoder.__getstate__())
    return [step["type"] for step in state.get("decoders", [state])]


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's letters for bytes: printable ones for themselves, the others from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return letters | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTES = _byte_alphabet()
