"""One rollout for a request that comes twice.

A request that comes while the same one is in flight joins it: both get the same deltas of one call. One that comes
after the first has finished is answered with what was recorded, if the client marks it as a retry. What is kept for
that is bounded in time and number. Two requests are the same where session, path, body and idempotency key are: a
client that wants two samples of one prompt asks with `n`, or with two idempotency keys.
"""

import time
from collections import OrderedDict
from typing import NamedTuple

from rolltap.call import Call, RequestKey


class _Finished(NamedTuple):
    call: Call
    at: float


class SameCalls:
    """Knows the calls in flight, and those that have just finished."""

    def __init__(self, *, window_s: float = 120.0, most: int = 1024) -> None:
        self._window_s = window_s
        self._most = most
        self._running: dict[RequestKey, Call] = {}
        self._finished: OrderedDict[RequestKey, _Finished] = OrderedDict()

    def find(self, key: RequestKey, *, retry: bool) -> Call | None:
        """The call that a request is the same as; a finished one only for a `retry`."""
        running = self._running.get(key)
        if running is not None and not running.given_up:
            return running
        found = self._finished.get(key) if retry else None
        return found.call if found is not None and found.at > time.monotonic() - self._window_s else None

    def begun(self, key: RequestKey, call: Call) -> None:
        """A call is in flight."""
        self._running[key] = call

    def ended(self, key: RequestKey, call: Call) -> None:
        """A call is over."""
        if self._running.get(key) is call:
            del self._running[key]
        if call.succeeded:
            self._keep(key, call)

    def _keep(self, key: RequestKey, call: Call) -> None:
        now = time.monotonic()
        self._finished[key] = _Finished(call, now)
        self._finished.move_to_end(key)
        while self._finished:
            oldest = next(iter(self._finished))
            if len(self._finished) <= self._most and self._finished[oldest].at > now - self._window_s:
                break
            del self._finished[oldest]
