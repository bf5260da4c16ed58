"""The worker thread that owns the model: it takes requests in, prefills, decodes, and hands tokens out.

Each turn of its loop runs a chunk of the oldest new prompts and decodes one token of every running sequence, so a long
prompt holds nobody's tokens up for longer than a chunk takes. Between turns it obeys: a pause, new weights.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rolltap import PauseMode, UpstreamError
from rolltap_plugins.local.batch import Batch, PrefixCache, share
from rolltap_plugins.local.checkpoints import Replacements
from rolltap_plugins.local.model import Model
from rolltap_plugins.local.prefill import Prefill, Prefiller
from rolltap_plugins.local.requests import Request, Weights

if TYPE_CHECKING:
    import torch


class Engine:
    """Runs requests on a model, in a thread of its own. Its public methods are for other threads."""

    def __init__(
        self,
        model: Model,
        *,
        threads: int,
        max_num_seqs: int,
        prefix_cache_bytes: int,
        version: int | str = 0,
    ) -> None:
        self._model = model
        self._threads = threads
        self._max_num_seqs = max_num_seqs
        self._prefixes = PrefixCache(prefix_cache_bytes)
        self._prefiller = Prefiller(model, self._prefixes)
        self._weights = Weights(0, version)
        self._paused: PauseMode | None = None
        self._drained: list[Future[None]] = []
        """Who waits for a pause's running sequences to end."""
        self._orders: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._incoming: deque[Request] = deque()
        self._waiting: deque[Request] = deque()
        self._prefills: deque[Prefill] = deque()
        self._batches: list[Batch] = []
        self._wake = threading.Condition()
        self._left = False
        """Whether somebody has left a request since it was looked for last."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="rolltap-local", daemon=True)
        self._thread.start()

    # ---- for other threads

    @property
    def running(self) -> int:
        """How many sequences hold keys and values now."""
        prefilling = sum(prefill.request.settings.n for prefill in tuple(self._prefills))
        return prefilling + sum(len(batch.sequences) for batch in tuple(self._batches))

    @property
    def paused(self) -> PauseMode | None:
        """How it is paused; None: it is not."""
        return self._paused

    @property
    def version(self) -> int | str:
        """The version of the weights that are served."""
        return self._weights.version

    def submit(self, request: Request) -> None:
        """Queue a request. Raises `UpstreamError` (503) where the engine has ended."""
        with self._wake:
            self._refuse_when_over()
            self._incoming.append(request)
            self._wake.notify()

    def leave(self, request: Request) -> None:
        """Drop a request before the next step; nothing happens where it is over."""
        request.cancelled = True
        with self._wake:
            self._left = True
            self._wake.notify()

    def pause(self, mode: PauseMode) -> "Future[None]":
        """Stop between two steps, until `resume`; a later pause's mode replaces an earlier one's.

        "abort" ends what runs, "keep" freezes it, "wait" finishes it; the future is done once that is so. Requests
        that have no token yet wait, whatever the mode: they lose nothing by it.
        """
        drained: Future[None] = Future()
        ordered = self._order(lambda: self._stop(mode, drained))
        return drained if mode == "wait" else ordered

    def resume(self) -> "Future[None]":
        """Go on."""
        return self._order(self._go_on)

    def set_weights(self, version: int | str, replacements: Replacements | None) -> "Future[None]":
        """Serve these weights from the next step on (None: those that there are, under another name)."""
        return self._order(lambda: self._swap(version, replacements))

    def close(self) -> None:
        """Fail what runs and end the thread; waits for the step that runs now."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _order(self, what: Callable[[], None]) -> "Future[None]":
        """Have the worker do something between two steps."""
        done: Future[None] = Future()
        with self._wake:
            self._refuse_when_over()
            self._orders.append((what, done))
            self._wake.notify()
        return done

    def _refuse_when_over(self) -> None:
        if self._closing or not self._thread.is_alive():
            raise _stopped("is not running")

    # ---- the worker

    def _run(self) -> None:
        import torch

        torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                while self._gather():
                    self._step()
        finally:
            stopped = _stopped("has stopped")
            with self._wake:
                self._closing = True
                self._fail((*self._incoming, *self._waiting, *self._started()), stopped)
                for future in (*(done for _, done in self._orders), *self._drained):
                    if future.set_running_or_notify_cancel():
                        future.set_exception(stopped)

    def _gather(self) -> bool:
        """Take in what was submitted, waiting while there is nothing to do; False: end."""
        with self._wake:
            while not (self._closing or self._incoming or self._orders or self._left or self._has_work()):
                self._wake.wait()
            self._waiting.extend(self._incoming)
            self._incoming.clear()
            self._left = False
            orders, self._orders = self._orders, deque()
            if self._closing:
                self._orders = orders
                return False
        for what, done in orders:
            _obey(what, done)
        return True

    def _has_work(self) -> bool:
        if self._paused == "keep":
            return False
        return bool(self._prefills or self._batches or (self._waiting and self._paused is None))

    def _step(self) -> None:
        self._drop_dead()
        if self._paused is None:
            self._admit()
        if self._paused != "keep":
            self._prefill()
            for batch in tuple(self._batches):
                self._decode(batch)
        if self._drained and not (self._prefills or self._batches):
            self._tell_drained()

    def _started(self) -> list[Request]:
        sequences = (sequence for batch in self._batches for sequence in batch.sequences)
        return [
            *(prefill.request for prefill in self._prefills),
            *(sequence.request for sequence in sequences),
        ]

    def _drop_dead(self) -> None:
        """Let go of the requests that were cancelled or have failed, and of the prompts that have been run."""
        self._waiting = deque(request for request in self._waiting if request.live)
        self._prefills = deque(
            prefill for prefill in self._prefills if prefill.request.live and not prefill.through
        )
        for batch in tuple(self._batches):
            self._prune(batch)

    def _admit(self) -> None:
        """Start waiting requests, in order, while there is room for all their sequences."""
        while self._waiting and self.running + self._waiting[0].settings.n <= self._max_num_seqs:
            self._prefills.append(Prefill(self._waiting.popleft()))

    def _prefill(self) -> None:
        """Run a chunk of the oldest prompts; those that are through have their first tokens then."""
        if not self._prefills:
            return
        chosen = self._prefiller.choose(self._prefills, self._weights)
        with self._guarded([prefill.request for prefill in chosen]):
            logits = self._prefiller.step(chosen, self._weights)
            new = [self._begin(*each) for each in zip(chosen, logits, strict=True) if each[0].through]
            self._join([batch for batch in new if batch.sequences])
        self._drop_dead()

    def _begin(self, prefill: Prefill, logits: "torch.Tensor") -> Batch:
        """The sequences of a prompt that is through, each with its first token."""
        request, cache = prefill.request, prefill.cache
        assert cache is not None  # noqa: S101  it covers the prompt
        sequences = request.sequences(self._model.network.device, self._weights)
        if self._model.is_plain(cache):
            self._prefixes.put((self._weights.number, request.salt), request.prompt, share(cache))
        batch = Batch(self._model, cache, sequences)
        self._advance(batch, logits.expand(len(sequences), -1))
        return batch

    def _join(self, batches: list[Batch]) -> None:
        """Decode new batches together with the others, where their kind of cache allows it."""
        plain = [batch for batch in (*self._batches, *batches) if batch.plain]
        self._batches += [batch for batch in batches if not batch.plain]
        if plain:
            first, *others = plain
            if others:
                first.merge(others)
            self._batches = [first, *(batch for batch in self._batches if not batch.plain)]

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
                    delta = sequence.advance(logits[row], logprobs[row], self._weights.version)
                    if delta is not None:
                        request.deliver(delta)
        self._prune(batch)

    def _prune(self, batch: Batch) -> None:
        """Drop the sequences that are done or dead.

        Their keys and values may serve a later prompt, where all of them come from the weights that are served.
        """
        keep = []
        for row, sequence in enumerate(batch.sequences):
            if sequence.request.live and not sequence.done:
                keep.append(row)
            elif batch.plain and sequence.born == self._weights.number:
                key = (sequence.born, sequence.request.salt)
                self._prefixes.put(key, batch.covered(row), batch.row(row))
        if not keep:
            batch.sequences = []
            self._forget(batch)
        elif len(keep) < len(batch.sequences):
            batch.keep(keep)

    def _forget(self, batch: Batch) -> None:
        self._batches = [other for other in self._batches if other is not batch]

    # ---- orders, between steps

    def _stop(self, mode: PauseMode, drained: "Future[None]") -> None:
        self._paused = mode
        if mode == "wait":
            self._drained.append(drained)
        if mode != "abort":
            return
        self._waiting.extendleft(prefill.request for prefill in reversed(self._prefills))
        self._prefills.clear()
        for batch in tuple(self._batches):
            for sequence in batch.sequences:
                if sequence.request.live and not sequence.done:
                    sequence.request.deliver(sequence.abort())
            self._prune(batch)

    def _go_on(self) -> None:
        self._paused = None
        self._tell_drained()

    def _tell_drained(self) -> None:
        waiting, self._drained = self._drained, []
        for drained in waiting:
            if drained.set_running_or_notify_cancel():
                drained.set_result(None)

    def _swap(self, version: int | str, replacements: Replacements | None) -> None:
        """Sequences that have tokens go on behind their own keys and values; all others begin anew."""
        if replacements is not None:
            self._model.replace(replacements)
        self._weights = Weights(self._weights.number + 1, version)
        self._prefixes.clear()
        for prefill in self._prefills:
            prefill.restart()

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


def _obey(what: Callable[[], None], done: "Future[None]") -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        what()
    except Exception as error:  # noqa: BLE001  it is whoever gave the order that is told
        done.set_exception(error)
    else:
        done.set_result(None)


def _stopped(what: str) -> UpstreamError:
    return UpstreamError(f"the local model {what}", status=503, code="engine_stopped")
