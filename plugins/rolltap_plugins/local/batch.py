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

    def merge(self, others: "list[Batch]") -> None:
        """Take over the rows of other batches; all must be plain."""
        batches = [self, *others]
        paddings = _concatenate(self.cache, [batch.cache for batch in batches])
        self._padding = [
            n + more for batch, more in zip(batches, paddings, strict=True) for n in batch._padding
        ]
        self.sequences = [sequence for batch in batches for sequence in batch.sequences]

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
        return cut(self.cache, row, self._padding[row], self.cache.get_seq_length())


Key = tuple[int, str]
"""Which prompts may share: those under the same weights, by their number, and with the same `cache_salt`."""


class PrefixCache:
    """The keys and values of recent sequences, the least recently used forgotten first. For plain caches only."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._kept: list[tuple[Key, list[int], Cache]] = []

    @property
    def keeps(self) -> bool:
        """Whether it may keep anything at all."""
        return self._limit > 0

    def put(self, key: Key, ids: list[int], cache: "Cache") -> None:
        """Keep a cache that covers `ids`, in place of those that cover less of the same."""
        if any(self._shared(entry, key, ids) == len(ids) for entry in self._kept):
            return
        self._kept = [entry for entry in self._kept if self._shared(entry, key, ids) < len(entry[1])]
        self._kept.append((key, ids, cache))
        total = sum(_size(kept) for *_, kept in self._kept)
        while total > self._limit:
            total -= _size(self._kept.pop(0)[2])

    def known(self, key: Key, prompt: list[int]) -> int:
        """How many ids of `prompt` a cache is there for; at least one is left."""
        return max(
            (min(self._shared(entry, key, prompt), len(prompt) - 1) for entry in self._kept), default=0
        )

    def take(self, key: Key, prompt: list[int]) -> "tuple[Cache | None, int]":
        """A cache for the longest known beginning of `prompt`, and how many ids it covers; at least one is left."""
        length = self.known(key, prompt)
        if not length:
            return None, 0
        place = next(
            place for place, entry in enumerate(self._kept) if self._shared(entry, key, prompt) >= length
        )
        entry = self._kept.pop(place)
        self._kept.append(entry)
        taken = share(entry[2])
        taken.crop(length - len(entry[1]))  # a negative number is how many to remove
        return taken, length

    def clear(self) -> None:
        """Forget all."""
        self._kept = []

    @staticmethod
    def _shared(entry: "tuple[Key, list[int], Cache]", key: Key, ids: list[int]) -> int:
        return common(entry[1], ids) if entry[0] == key else 0


def stack(model: Model, caches: "list[Cache | None]") -> "tuple[Cache, list[int]]":
    """One cache with a row for each, and how much of each row's beginning is empty; None: nothing is known yet."""
    known = [cache for cache in caches if cache is not None]
    if not known:
        return model.new_cache(), [0] * len(caches)
    if len(caches) == 1:
        return known[0], [0]
    nothing = share(known[0])
    for layer in _layers(nothing):
        layer.keys, layer.values = layer.keys[..., :0, :], layer.values[..., :0, :]
    stacked = share(known[0])
    return stacked, _concatenate(stacked, [nothing if cache is None else cache for cache in caches])


def cut(cache: "Cache", row: int, start: int, end: int) -> "Cache":
    """A copy of one row's keys and values from `start` to `end`; the cache must be plain."""
    taken = share(cache)
    for layer in _layers(taken):
        layer.keys = layer.keys[row : row + 1, :, start:end].clone()
        layer.values = layer.values[row : row + 1, :, start:end].clone()
    return taken


def share(cache: "Cache") -> "Cache":
    """A cache of its own over the same tensors, which plain layers replace and never change."""
    twin = copy.copy(cache)
    twin.layers = [copy.copy(layer) for layer in cache.layers]
    return twin


def common(first: list[int], second: list[int]) -> int:
    """How many ids two lists begin with in common."""
    shorter = min(len(first), len(second))
    if first[:shorter] == second[:shorter]:
        return shorter
    return next(place for place in range(shorter) if first[place] != second[place])


def _concatenate(into: "Cache", caches: "list[Cache]") -> list[int]:
    """Put the rows of all caches into one, padded at the left to one width; how much each was padded."""
    import torch

    widths = [cache.get_seq_length() for cache in caches]
    missing = [max(widths) - width for width in widths]
    for layer, *parts in zip(_layers(into), *map(_layers, caches), strict=True):
        keys = [_pad(part.keys, places) for part, places in zip(parts, missing, strict=True)]
        values = [_pad(part.values, places) for part, places in zip(parts, missing, strict=True)]
        layer.keys, layer.values = torch.cat(keys), torch.cat(values)
    return missing


def _pad(states: "torch.Tensor", places: int) -> "torch.Tensor":
    import torch

    return torch.nn.functional.pad(states, (0, 0, places, 0)) if places else states


def _layers(cache: "Cache") -> list[Any]:
    """The layers of a plain cache: transformers' types have no word for "all of them DynamicLayer, filled"."""
    return cache.layers


def _size(cache: "Cache") -> int:
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in _layers(cache))
