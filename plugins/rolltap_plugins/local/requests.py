"""A request on its way through the engine, and the sequences (choices) that it consists of."""

import asyncio
import math
from typing import TYPE_CHECKING

from rolltap import TokenDelta, UpstreamError
from rolltap_plugins.local.sampling import Sampler, Settings

if TYPE_CHECKING:
    import torch

LOGPROBS_MODE = "raw_logprobs"
"""vLLM's name for logprobs of the model itself: before penalties, temperature and the like."""


class Request:
    """What the event loop and the worker thread share of one request.

    The loop reads `events`: deltas, then None, or the exception that ended it. The worker sets `over`; the
    loop sets `cancelled`, after which the worker drops the request at its next step.
    """

    def __init__(self, prompt: list[int], settings: Settings) -> None:
        self.prompt = prompt
        self.settings = settings
        self.cached_tokens = 0
        self.cancelled = False
        self.over = False
        self.events: asyncio.Queue[TokenDelta | Exception | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._left = settings.n

    @property
    def live(self) -> bool:
        """Whether the worker should go on with it."""
        return not (self.over or self.cancelled)

    def sequences(self, device: "torch.device") -> "list[Sequence]":
        """The choices, each at the end of the prompt."""
        return [Sequence(self, index, device) for index in range(self.settings.n)]

    def deliver(self, delta: TokenDelta) -> None:
        """Hand a delta to the loop, and the end after the last choice's last one. For the worker."""
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
    """One choice: its ids so far, and how it picks the next one."""

    def __init__(self, request: Request, index: int, device: "torch.device") -> None:
        self.request = request
        self.index = index
        self.ids = list(request.prompt)
        self.done = False
        self._sampler = Sampler(request.settings, index, len(request.prompt), device)

    def advance(self, logits: "torch.Tensor", logprobs: "torch.Tensor") -> TokenDelta:
        """Pick the next token from its `logits` and add it; `logprobs` are the raw ones. One row each."""
        prompt, settings = self.request.prompt, self.request.settings
        token = self._sampler(self.ids, logits)
        logprob = float(logprobs[token])
        if math.isnan(logprob):
            raise ValueError(
                "the model's output is not a number; float16 and bfloat16 may need dtype float32"
            )
        self.ids.append(token)
        generated = len(self.ids) - len(prompt)
        finish, reason = settings.end(token, generated) or (None, None)
        self.done = finish is not None
        first = generated == 1
        return TokenDelta(
            index=self.index,
            token_ids=[token],
            logprobs=[logprob],
            top_logprobs=[_top(logprobs, settings.top_logprobs)] if settings.top_logprobs else None,
            finish_reason=finish,
            stop_reason=reason,
            prompt_token_ids=list(prompt) if first and self.index == 0 else None,
            cached_tokens=self.request.cached_tokens if first and self.index == 0 else None,
            logprobs_mode=LOGPROBS_MODE,
            sampling=settings.applied() if first and self.index == 0 else None,
        )


def _top(logprobs: "torch.Tensor", count: int) -> dict[int, float]:
    values, ids = logprobs.topk(count)
    return dict(zip(ids.tolist(), values.tolist(), strict=True))
