"""Keys and values: sequences decoded together, and those of ended sequences, kept for prompts that begin with them."""

import copy
from typing import TYPE_CHECKING, Any

from rolltap_plugins.local.model import Model
from rolltap_plugins.local.requests import Sequence

if TYPE_CHECKING:
    import torch
    from transformers import Cache


class Batch:
    """Sequences that are decoded together.

    Row r of the cache belongs to `sequences[r]` and, between steps, covers all its ids but the last. Rows are padded at the left to
    one width; padding is masked out exactly, so a row's result does not depend on the others but for float rounding.
    """

    def __init__(self, model: Model, cache: "Cache", sequences: list[Sequence]) -> None:
        """Take over a cache that has one row, the sequences' common beginning."""
        self._model = model
        self.cache = cache
        self.sequences = sequences
        self.plain = model.is_plain(cache)
        self._padding = [0] * len(sequences)
        if len(sequences) > 1:
            cache.batch_repeat_interleave(len(sequences))

    def logits(self) -> "torch.Tensor":
        """Run each sequence's last id; each row's logits for the next."""
        return self._model.forward(
            [[sequence.ids[-1]] for sequence in self.sequences], self.cache, self._padding
        )

    def merge(self, other: "Batch") -> None:
        """Take over the rows of another batch; both must be plain."""
        import torch

        widths = self.cache.get_seq_length(), other.cache.get_seq_length()
        mine, theirs = (max(widths) - width for width in widths)
        for layer, more in zip(_layers(self.cache), _layers(other.cache), strict=True):
            layer.keys = torch.cat([_pad(layer.keys, mine), _pad(more.keys, theirs)])
            layer.values = torch.cat([_pad(layer.values, mine), _pad(more.values, theirs)])
        self._padding = [n + mine for n in self._padding] + [n + theirs for n in other._padding]
        self.sequences = self.sequences + other.sequences

    def keep(self, rows: list[int]) -> None:
        """Drop all rows but these (at least one), and the padding that none of them needs."""
        import torch

        self.cache.batch_select_indices(torch.tensor(rows, device=self._model.network.device))
        self.sequences = [self.sequences[row] for row in rows]
        self._padding = [self._padding[row] for row in rows]
        spare = min(self._padding)
        if spare:
            self._padding = [n - spare for n in self._padding]
            for layer in _layers(self.cache):
                layer.keys, layer.values = layer.keys[..., spare:, :], layer.values[..., spare:, :]

    def covered(self, row: int) -> list[int]:
        """The ids whose keys and values a row holds."""
        return self.sequences[row].ids[: self.cache.get_seq_length() - self._padding[row]]

    def row(self, row: int) -> "Cache":
        """A copy of one row's keys and values, without padding; the batch must be plain."""
        taken = _shallow(self.cache)
        for layer in _layers(taken):
            layer.keys = layer.keys[row : row + 1, :, self._padding[row] :].clone()
            layer.values = layer.values[row : row + 1, :, self._padding[row] :].clone()
        return taken


class PrefixCache:
    """The keys and values of recent sequences, the least recently used forgotten first. For plain caches only."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._kept: list[tuple[list[int], Cache]] = []

    def put(self, ids: list[int], cache: "Cache") -> None:
        """Keep a cache that covers `ids`, in place of those that cover less of the same."""
        if any(_common(kept, ids) == len(ids) for kept, _ in self._kept):
            return
        self._kept = [entry for entry in self._kept if _common(entry[0], ids) < len(entry[0])]
        self._kept.append((ids, cache))
        total = sum(_size(kept) for _, kept in self._kept)
        while total > self._limit:
            total -= _size(self._kept.pop(0)[1])

    def take(self, prompt: list[int]) -> "tuple[Cache | None, int]":
        """A cache for the longest known beginning of `prompt`, and how many ids it covers; at least one is left."""
        lengths = [min(_common(ids, prompt), len(prompt) - 1) for ids, _ in self._kept]
        length = max(lengths, default=0)
        if not length:
            return None, 0
        entry = self._kept.pop(lengths.index(length))
        self._kept.append(entry)
        taken = _shallow(entry[1])
        taken.crop(length - len(entry[0]))  # a negative number is how many to remove
        return taken, length


def _pad(states: "torch.Tensor", places: int) -> "torch.Tensor":
    import torch

    return torch.nn.functional.pad(states, (0, 0, places, 0)) if places else states


def _shallow(cache: "Cache") -> "Cache":
    """A cache of its own over the same tensors, which plain layers replace and never change."""
    twin = copy.copy(cache)
    twin.layers = [copy.copy(layer) for layer in cache.layers]
    return twin


def _layers(cache: "Cache") -> list[Any]:
    """The layers of a plain cache: transformers' types have no word for "all of them DynamicLayer, filled"."""
    return cache.layers


def _size(cache: "Cache") -> int:
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in _layers(cache))


def _common(first: list[int], second: list[int]) -> int:
    """How many ids two lists begin with in common."""
    shorter = min(len(first), len(second))
    if first[:shorter] == second[:shorter]:
        return shorter
    return next(place for place in range(shorter) if first[place] != second[place])
