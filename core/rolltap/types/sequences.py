"""A recorded sequence as packed arrays, and what of it the model generated: what exports are made from."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from rolltap.types.generation import FinishReason
from rolltap.types.ledger import Times

T = TypeVar("T")


class GeneratedSpan(Struct, frozen=True, kw_only=True):
    """One completion inside a sequence: the tokens from `start` up to, not including, `stop`."""

    node_id: str
    start: int
    stop: int
    trained: bool
    """Whether this sequence trains it. Where not, another sequence does, or it must not be trained on."""
    versions: tuple[tuple[int, int, int | str], ...] = ()
    """The weight versions that generated it: start and stop in the sequence, and the version. Empty: not known."""
    message: int | None = None
    """Its place in `NodeView.messages`; None where the sequence is not a conversation."""
    finish_reason: FinishReason | None = None
    sampling: Mapping[str, Any]
    """The effective sampling parameters."""
    times: Times
    cached_tokens: int | None = None
    """The part of the prompt that the engine had cached, where it says."""

    def __len__(self) -> int:
        return self.stop - self.start


class PackedNode(Struct, frozen=True, kw_only=True):
    """A node's whole sequence as arrays of one length, without a Python object for each token.

    `list(tokens)` or `tokens.tolist()` makes a list; pyarrow and numpy take the arrays without a copy. Don't change them.
    """

    tokens: "array[int]"
    """Token ids, 32 bits each."""
    masked: "array[int]"
    """The same, with -100 wherever this sequence must not be trained on."""
    logprobs: "array[float]"
    """Doubles: the engine's values on trained tokens, 1.0 elsewhere, and NaN where the engine gave none."""
    spans: tuple[GeneratedSpan, ...]
    """What was generated, in order. Empty where no ids are known."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def trained(self) -> list[GeneratedSpan]:
        """The spans that this sequence trains."""
        return [span for span in self.spans if span.trained]

    @property
    def num_trained(self) -> int:
        """How many tokens this sequence trains."""
        return sum(len(span) for span in self.spans if span.trained)

    @property
    def response_start(self) -> int:
        """Where a trainer that splits prompt and response cuts: at the first trained token.

        Where nothing is trained, it is the start of what was generated last.
        """
        trained = self.trained
        if trained:
            return trained[0].start
        return self.spans[-1].start if self.spans else len(self)

    def spread(self, context: T, values: Callable[[GeneratedSpan], Sequence[T]]) -> list[T]:
        """One value for each token: `values(span)` on trained spans, `context` elsewhere."""
        spread = [context] * len(self)
        for span in self.spans:
            if span.trained:
                spread[span.start : span.stop] = values(span)
        return spread

    def mask(self, context: T, trained: T) -> list[T]:
        """One of two values for each token."""
        return self.spread(context, lambda span: [trained] * len(span))

    def logprobs_with(self, context: float | None) -> list[float | None]:
        """The logprobs on trained tokens, `context` elsewhere."""
        return self.spread(context, lambda span: self.logprobs[span.start : span.stop].tolist())

    def versions_with(self, context: T, read: Callable[[int | str], T]) -> list[T]:
        """For each trained token what `read` makes of its weight version; `context` elsewhere and where not known."""

        def versions(span: GeneratedSpan) -> list[T]:
            found = [context] * len(span)
            for start, stop, version in span.versions:
                found[start - span.start : stop - span.start] = [read(version)] * (stop - start)
            return found

        return self.spread(context, versions)

    @property
    def versions(self) -> list[int | str]:
        """The weight versions of the trained tokens, each once, in the order of the sequence."""
        return list(dict.fromkeys(version for span in self.trained for _, _, version in span.versions))
