"""Token ids to text, piece by piece."""

import codecs
from abc import ABC, abstractmethod
from collections.abc import Iterable

from rolltap.rendering.codec import Codec

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer(ABC):
    """Turns the ids of one choice into text as they come.

    However the ids are cut, all pieces together are what the tokenizer's own `decode` gives for the whole list
    (without cleaned-up spaces), and the work is in proportion to the ids. Characters that are spread over several
    tokens are held back until they are complete.
    """

    def __init__(self, codec: Codec, skipped: frozenset[int], hidden_at_end: frozenset[int]) -> None:
        self._codec = codec
        self._skipped = skipped
        self._hidden_at_end = hidden_at_end
        self._held: list[int] = []

    def feed(self, ids: Iterable[int]) -> str:
        """Take the next ids; give the text that is certain now."""
        shown: list[int] = []
        for index in ids:
            if index in self._skipped:
                continue
            if index in self._hidden_at_end:
                self._held.append(index)
                continue
            if self._held:
                shown += self._held
                self._held.clear()
            shown.append(index)
        return self._decode(shown) if shown else ""

    @abstractmethod
    def finish(self) -> str:
        """The ids are over: give the text that was held back. Called once, last."""

    @abstractmethod
    def _decode(self, ids: list[int]) -> str:
        """The text that is certain after these ids."""


class ByteDetokenizer(Detokenizer):
    """For byte-level vocabularies: each token is some bytes, whatever stands beside it."""

    def __init__(self, codec: Codec, skipped: frozenset[int], hidden_at_end: frozenset[int]) -> None:
        super().__init__(codec, skipped, hidden_at_end)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def finish(self) -> str:
        """See `Detokenizer.finish`."""
        return self._utf8.decode(b"", final=True)

    def _decode(self, ids: list[int]) -> str:
        return self._utf8.decode(b"".join([self._codec.token_bytes(index) for index in ids]))


class WindowDetokenizer(Detokenizer):
    """For every other vocabulary: decodes the new ids behind the last one before them, and takes the difference.

    Tokens of single bytes (`<0xE4>`) are held back until another kind of token ends their run: such tokenizers
    decode a run as a whole, and one bad byte makes replacement characters of all of it.
    """

    def __init__(self, codec: Codec, skipped: frozenset[int], hidden_at_end: frozenset[int]) -> None:
        super().__init__(codec, skipped, hidden_at_end)
        self._byte_fallback = "ByteFallback" in codec.decoder_kinds
        self._before: list[int] = []
        self._before_text = ""
        self._new: list[int] = []
        self._next_try = 1

    def finish(self) -> str:
        """See `Detokenizer.finish`."""
        text = self._codec.decode(self._before + self._new)
        return text[len(self._before_text) :]

    def _decode(self, ids: list[int]) -> str:
        # An id outside the vocabulary decodes to nothing, and must not pass for the token before the new ones.
        self._new += [index for index in ids if self._codec.token(index) is not None]
        if len(self._new) < self._next_try or self._in_byte_run():
            return ""
        text = self._codec.decode(self._before + self._new)
        unfinished = text.endswith(_REPLACEMENT) and not self._byte_fallback
        if unfinished or not text.startswith(self._before_text) or len(text) == len(self._before_text):
            # Ever rarer tries: a long run of ids without a text must not cost the square of its length.
            self._next_try = len(self._new) + max(1, len(self._new) // 4)
            return ""
        new_text = text[len(self._before_text) :]
        self._before = self._new[-1:]
        self._before_text = self._codec.decode(self._before)
        if not self._before_text:
            self._before, self._before_text = self._new, self._codec.decode(self._new)
        self._new, self._next_try = [], 1
        return new_text

    def _in_byte_run(self) -> bool:
        token = self._codec.token(self._new[-1]) or ""
        return self._byte_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def make_detokenizer(codec: Codec, skipped: frozenset[int], hidden_at_end: frozenset[int]) -> Detokenizer:
    """The detokenizer that fits the tokenizer; `skipped` ids are never shown, `hidden_at_end` not at the end."""
    kind = ByteDetokenizer if codec.byte_level else WindowDetokenizer
    return kind(codec, skipped, hidden_at_end)
