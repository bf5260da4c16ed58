"""A request on its way through the engine, and the sequences (choices) that it consists of."""

import asyncio
import math
from typing import TYPE_CHECKING, NamedTuple

from rolltap import FinishReason, TokenDelta, UpstreamError
from rolltap_plugins.local.sampling import Sampler, Settings

if TYPE_CHECKING:
    import torch

LOGPROBS_MODE = "raw_logprobs"
"""vLLM's name for logprobs of the model itself: before penalties, temperature and the like."""


UNREAD = 32
"""Tokens of a choice told at once where nobody reads them as they come. Not all at the end: a client that leaves has
most of its reply recorded, and no time limit takes a long reply for silence."""


class Weights(NamedTuple):
    """The weights that are served: counted from 0, and called `version` by whoever put them there."""

    number: int
    version: int | str


class Request:
    """What the event loop and the worker thread share of one request.

    The loop reads `events`: deltas, then None, or the exception that ended it. The worker sets `over`; the
    loop sets `cancelled`, after which the worker drops the request at its next step.
    """

    def __init__(self, prompt: list[int], settings: Settings, *, stream: bool = True, salt: str = "") -> None:
        self.prompt = prompt
        self.settings = settings
        self.stream = stream
        self.salt = salt
        self.cached_tokens = 0
        self.cancelled = False
        self.over = False
        self.events: asyncio.Queue[TokenDelta | Exception | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._left = settings.n
        self._begun = False

    @property
    def live(self) -> bool:
        """Whether the worker should go on with it."""
        return not (self.over or self.cancelled)

    def sequences(self, device: "torch.device", weights: Weights) -> "list[Sequence]":
        """The choices, each at the end of the prompt, which these weights have read."""
        return [Sequence(self, index, device, weights) for index in range(self.settings.n)]

    def deliver(self, delta: TokenDelta) -> None:
        """Hand a delta to the loop, and the end after the last choice's last one. For the worker."""
        if not self._begun:
            self._begun = True
            delta.prompt_token_ids = list(self.prompt)
            delta.cached_tokens = self.cached_tokens
            delta.sampling = self.settings.applied()
        self._send(delta)
        if delta.finish_reason is not None:
            self._left -= 1
            if not self._left:
                self.over = True
                self._send(None)

    def fail(self, error: Exception) -> None:
        """End the request with an error. For the worker; nothing happens where it is over."""
        if self.over:
            return
        self.over = True
        if not isinstance(error, UpstreamError):
            message = f"the local model failed: {type(error).__name__}: {error}"
            cause, error = error, UpstreamError(message, status=500, code="engine_error")
            error.__cause__ = cause
        self._send(error)

    def _send(self, event: TokenDelta | Exception | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self.events.put_nowait, event)
        except RuntimeError:  # the loop has been closed: nobody reads any more
            self.cancelled = True


class Sequence:
    """One choice: its ids so far, how it picks the next one, and which weights wrote which.

    `born` is the number of the weights that its first keys and values come from. Where others are served meanwhile it
    goes on with them, behind keys and values of the old ones: those stay its own and serve no other prompt.
    """

    def __init__(self, request: Request, index: int, device: "torch.device", weights: Weights) -> None:
        self.request = request
        self.index = index
        self.ids = list(request.prompt)
        self.done = False
        self.born = weights.number
        self._sampler = Sampler(request.settings, index, len(request.prompt), device)
        self._spans: list[tuple[int, int, int | str]] = []
        self._untold = TokenDelta(index=index, logprobs=[])

    def advance(
        self, logits: "torch.Tensor", logprobs: "torch.Tensor", version: int | str
    ) -> TokenDelta | None:
        """Pick the next token from its `logits` and add it; `logprobs` are the raw ones. One row each.

        :returns: what there is to tell now, if anything.
        """
        settings = self.request.settings
        token = self._sampler(self.ids, logits)
        logprob = float(logprobs[token])
        if math.isnan(logprob):
            raise ValueError(
                "the model's output is not a number; float16 and bfloat16 may need dtype float32"
            )
        self.ids.append(token)
        generated = len(self.ids) - len(self.request.prompt)
        self._place(generated, version)
        self._untold.token_ids.append(token)
        assert self._untold.logprobs is not None  # noqa: S101  made with a list
        self._untold.logprobs.append(logprob)
        if settings.top_logprobs:
            self._untold.top_logprobs = [
                *(self._untold.top_logprobs or ()),
                _top(logprobs, settings.top_logprobs),
            ]
        finish, reason = settings.end(token, generated) or (None, None)
        if finish is None and not self.request.stream and len(self._untold.token_ids) < UNREAD:
            return None
        return self._tell(finish, reason)

    def abort(self) -> TokenDelta:
        """End here, for a pause: what was not told yet, and that more would have come."""
        return self._tell("abort", None)

    def _place(self, generated: int, version: int | str) -> None:
        """Note which weights wrote the newest token."""
        if self._spans and self._spans[-1][2] == version:
            self._spans[-1] = (self._spans[-1][0], generated, version)
        else:
            self._spans.append((generated - 1, generated, version))

    def _tell(self, finish: FinishReason | None, reason: int | None) -> TokenDelta:
        """The versions of all tokens so far go with each delta: whoever stops reading has those of what was read."""
        self.done = finish is not None
        told, self._untold = self._untold, TokenDelta(index=self.index, logprobs=[])
        told.finish_reason, told.stop_reason = finish, reason
        told.logprobs_mode = LOGPROBS_MODE
        told.weight_versions = [list(span) for span in self._spans]
        return told


def _top(logprobs: "torch.Tensor", count: int) -> dict[int, float]:
    values, ids = logprobs.topk(count)
    return dict(zip(ids.tolist(), values.tolist(), strict=True))
