"""Prompts on their way into the model: which are run together in a step, and what is kept of them.

A step with few ids costs the model almost as much as one with many, so short prompts share a step: rows padded at the
right to one width, behind prefixes padded at the left to another.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rolltap_plugins.local.batch import PrefixCache, common, cut, stack
from rolltap_plugins.local.model import Model
from rolltap_plugins.local.requests import Request, Weights

if TYPE_CHECKING:
    import torch
    from transformers import Cache

CHUNK = 128
"""Ids of prompts run in a step, padding included. The embedded model takes about half a second for them on one core,
which is how long others' tokens wait at most; larger chunks were not faster."""

STEP_COST = 24
"""What a step of its own costs besides its ids, measured in ids: a row joins where it adds less padding."""


class Prefill:
    """A request whose prompt is being run: `cache` covers the first `done` ids."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.cache: Cache | None = None
        self.done = 0
        self.through = False
        """Whether all of the prompt has been run."""

    def restart(self) -> None:
        """Forget what was run: it was run with other weights."""
        self.cache, self.done = None, 0


class Prefiller:
    """Runs prompts, some together, and begins with what is known of them. For the worker thread."""

    def __init__(self, model: Model, prefixes: PrefixCache) -> None:
        self._model = model
        self._prefixes = prefixes
        self._batches = model.is_plain(model.new_cache())

    def choose(self, queue: Iterable[Prefill], weights: Weights) -> list[Prefill]:
        """The oldest, and others that fit into a step with it and would not do better to wait for what it leaves."""
        waiting = iter(queue)
        chosen = [next(waiting)]
        width = min(CHUNK, self._left(chosen[0], weights))
        for other in waiting if self._batches else ():
            if (len(chosen) + 1) * width > CHUNK:
                break
            left = self._left(other, weights)
            wider = max(width, left)
            size = (len(chosen) + 1) * wider
            padding = size - len(chosen) * width - left
            if size <= CHUNK and padding <= STEP_COST and not self._gains(other, left, chosen):
                chosen.append(other)
                width = wider
        return chosen

    def step(self, chosen: list[Prefill], weights: Weights) -> "list[torch.Tensor]":
        """Run a chunk of each; the logits after it, a row each. Those that have come to their end are `through`."""
        for prefill in chosen:
            self._begin(prefill, weights)
        chunks = [prefill.request.prompt[prefill.done : prefill.done + CHUNK] for prefill in chosen]
        cache, padding = stack(self._model, [prefill.cache for prefill in chosen])
        known = cache.get_seq_length()
        logits = self._model.forward(chunks, cache, padding)
        for row, (prefill, chunk) in enumerate(zip(chosen, chunks, strict=True)):
            alone = len(chosen) == 1
            prefill.cache = cache if alone else cut(cache, row, padding[row], known + len(chunk))
            prefill.done += len(chunk)
            prefill.through = prefill.done == len(prefill.request.prompt)
        return [logits[row : row + 1] for row in range(len(chosen))]

    def _begin(self, prefill: Prefill, weights: Weights) -> None:
        if prefill.done:
            return
        request = prefill.request
        prefill.cache, prefill.done = self._prefixes.take((weights.number, request.salt), request.prompt)
        request.cached_tokens = prefill.done

    def _left(self, prefill: Prefill, weights: Weights) -> int:
        """How many ids of its prompt must still be run."""
        request = prefill.request
        known = prefill.done or self._prefixes.known((weights.number, request.salt), request.prompt)
        return len(request.prompt) - known

    def _gains(self, prefill: Prefill, left: int, chosen: Iterable[Prefill]) -> bool:
        """Whether most of what it has left is what one of the chosen runs now, and will be known a little later."""
        if prefill.done or not self._prefixes.keeps:
            return False
        prompt, salt = prefill.request.prompt, prefill.request.salt
        shared = (common(other.request.prompt, prompt) for other in chosen if other.request.salt == salt)
        return max(shared, default=0) - (len(prompt) - left) > left / 2
