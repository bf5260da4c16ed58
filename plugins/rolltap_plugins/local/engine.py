"""The worker thread that owns the model: it takes requests in, prefills, decodes, and hands tokens out.

Each turn of its loop prefills one chunk of the oldest new prompt and decodes one token of every running sequence, so
a long prompt holds nobody's tokens up for longer than a chunk takes.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rolltap import UpstreamError
from rolltap_plugins.local.batch import Batch, PrefixCache
from rolltap_plugins.local.model import Model
from rolltap_plugins.local.requests import Request

if TYPE_CHECKING:
    import torch
    from transformers import Cache

PREFILL_CHUNK = 128
"""Ids of a prompt run at once. The embedded model takes about half a second for them on one core, which is how long
others' tokens wait at most; larger chunks were not faster."""


class _Prefill:
    """A request whose prompt is being run."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.cache: Cache | None = None
        self.done = 0


class Engine:
    """Runs requests on a model, in a thread of its own. Its public methods are for other threads."""

    def __init__(self, model: Model, *, threads: int, max_num_seqs: int, prefix_cache_bytes: int) -> None:
        self._model = model
        self._threads = threads
        self._max_num_seqs = max_num_seqs
        self._prefixes = PrefixCache(prefix_cache_bytes)
        self._incoming: deque[Request] = deque()
        self._waiting: deque[Request] = deque()
        self._prefills: deque[_Prefill] = deque()
        self._batches: list[Batch] = []
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="rolltap-local", daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """How many sequences hold keys and values now."""
        prefilling = sum(prefill.request.settings.n for prefill in tuple(self._prefills))
        return prefilling + sum(len(batch.sequences) for batch in tuple(self._batches))

    def submit(self, request: Request) -> None:
        """Queue a request. Raises `UpstreamError` (503) where the engine has ended."""
        with self._wake:
            if self._closing or not self._thread.is_alive():
                raise UpstreamError("the local model is not running", status=503, code="engine_stopped")
            self._incoming.append(request)
            self._wake.notify()

    def close(self) -> None:
        """Fail what runs and end the thread; waits for the step that runs now."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        import torch

        torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                while self._gather():
                    self._drop_dead()
                    self._admit()
                    self._prefill()
                    for batch in tuple(self._batches):
                        self._decode(batch)
        finally:
            stopped = UpstreamError("the local model has stopped", status=503, code="engine_stopped")
            with self._wake:
                self._closing = True
                self._fail((*self._incoming, *self._waiting, *self._started()), stopped)

    def _gather(self) -> bool:
        """Take in what was submitted, waiting while there is nothing to do; False: end."""
        with self._wake:
            while not (self._closing or self._incoming or self._waiting or self._prefills or self._batches):
                self._wake.wait()
            self._waiting.extend(self._incoming)
            self._incoming.clear()
            return not self._closing

    def _started(self) -> list[Request]:
        sequences = (sequence for batch in self._batches for sequence in batch.sequences)
        return [
            *(prefill.request for prefill in self._prefills),
            *(sequence.request for sequence in sequences),
        ]

    def _drop_dead(self) -> None:
        """Let go of the requests that were cancelled or have failed."""
        self._waiting = deque(request for request in self._waiting if request.live)
        self._prefills = deque(prefill for prefill in self._prefills if prefill.request.live)
        for batch in tuple(self._batches):
            self._prune(batch)

    def _admit(self) -> None:
        """Start waiting requests, in order, while there is room for all their sequences."""
        while self._waiting and self.running + self._waiting[0].settings.n <= self._max_num_seqs:
            self._prefills.append(_Prefill(self._waiting.popleft()))

    def _prefill(self) -> None:
        """Run a chunk of the oldest prompt; after its last one its sequences have their first tokens."""
        if not self._prefills:
            return
        prefill = self._prefills[0]
        request = prefill.request
        with self._guarded([request]):
            if prefill.cache is None:
                prefill.cache, prefill.done = self._prefixes.take(request.prompt)
                request.cached_tokens = prefill.done
            if prefill.cache is None:
                prefill.cache = self._model.new_cache()
            chunk = request.prompt[prefill.done : prefill.done + PREFILL_CHUNK]
            logits = self._model.forward([chunk], prefill.cache)
            prefill.done += len(chunk)
            if prefill.done < len(request.prompt):
                return
            self._prefills.popleft()
            sequences = request.sequences(self._model.network.device)
            batch = Batch(self._model, prefill.cache, sequences)
            if batch.plain:
                self._prefixes.put(request.prompt, batch.row(0))
            self._advance(batch, logits.expand(len(sequences), -1))
            self._join(batch)

    def _join(self, batch: Batch) -> None:
        """Decode a new batch together with the others, where its kind of cache allows it."""
        others = [other for other in self._batches if other.plain and batch.plain]
        if others and batch.sequences:
            others[0].merge(batch)
        elif batch.sequences:
            self._batches.append(batch)

    def _decode(self, batch: Batch) -> None:
        """One token for every sequence of a batch."""
        requests = [sequence.request for sequence in batch.sequences]
        try:
            self._advance(batch, batch.logits())
        except Exception as error:  # noqa: BLE001  see _guarded
            self._forget(batch)  # not pruned: its cache may be half written
            self._fail(requests, error)

    def _advance(self, batch: Batch, logits: "torch.Tensor") -> None:
        """Pick and deliver each sequence's next token, and let go of those that are done."""
        logprobs = logits.log_softmax(-1)
        for row, sequence in enumerate(batch.sequences):
            request = sequence.request
            with self._guarded([request]):
                if request.live:
                    request.deliver(sequence.advance(logits[row], logprobs[row]))
        self._prune(batch)

    def _prune(self, batch: Batch) -> None:
        """Drop the sequences that are done or dead; their keys and values may serve a later prompt."""
        keep = []
        for row, sequence in enumerate(batch.sequences):
            if sequence.request.live and not sequence.done:
                keep.append(row)
            elif batch.plain:
                self._prefixes.put(batch.covered(row), batch.row(row))
        if not keep:
            batch.sequences = []
            self._forget(batch)
        elif len(keep) < len(batch.sequences):
            batch.keep(keep)

    def _forget(self, batch: Batch) -> None:
        self._batches = [other for other in self._batches if other is not batch]

    @contextmanager
    def _guarded(self, requests: Iterable[Request]) -> Iterator[None]:
        """What goes wrong inside fails these requests, and not the engine."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  any fault of a model's code ends its requests alone
            self._fail(requests, error)

    def _fail(self, requests: Iterable[Request], error: Exception) -> None:
        for request in requests:
            request.fail(error)
