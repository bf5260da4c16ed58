"""What backends subclass, and how the core sees a configured one."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from rolltap.types.chat import ChatRequest, Sampling
from rolltap.types.generation import ChatDelta, TokenDelta

log = logging.getLogger(__name__)

SAMPLING_PARAMETERS = frozenset(Sampling.__struct_fields__) - {"extra"}
"""Every parameter that `Sampling` has a name for."""

MAX_COOL_DOWN_S = 60.0
"""The longest that a failing backend is left out before it is tried again."""


class Backend(ABC):
    """What every backend has. All but the generating method has a default that fits a simple one."""

    parameters: ClassVar[frozenset[str] | None] = SAMPLING_PARAMETERS
    """The sampling parameters this backend takes; None: any, unknown ones included. A request that sets another
    one is answered with a 400 that names it."""

    ends_explicitly: ClassVar[bool] = False
    """Whether it says of each choice why it ended. An answer that just stops is then one that was cut off (a 502);
    else it is one that was finished."""

    url: str = ""
    """The address of what it talks to, where it has one; sessions pin a backend by it. The config's `url` goes first."""

    tokenizer: str = ""
    """The tokenizer that goes with it, a hub id or a folder, where the backend knows it once it has started. Used
    where the model's config names none."""

    async def start(self) -> None:
        """Get ready: called once before the server listens. Raise to stop the start with a clear message."""

    async def close(self) -> None:
        """Let go of everything: called once when the server ends."""

    async def check(self) -> dict[str, Any]:
        """Say what the other end is able to do, for `rolltap check`; raise where it can't be used."""
        return {}


class TokenBackend(Backend):
    """A backend that works in tokens: ids in, ids and logprobs out."""

    @abstractmethod
    def generate(self, prompt_ids: list[int], sampling: Sampling) -> AsyncIterator[TokenDelta]:
        """Generate `sampling.n` choices after `prompt_ids`; yield tokens as they come.

        An async generator. Closing it (or cancelling the task that reads it) must stop the engine's work.
        """


class ChatBackend(Backend):
    """A backend that works in messages. Its sessions are recorded as text, never trainable."""

    raw_text: ClassVar[bool] = False
    """Whether its text may hold tool calls and thinking in the model's own markup; the model's parsers then read
    it. Most chat upstreams have parsed it themselves."""

    @abstractmethod
    def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        """Answer the request; yield deltas as they come. An async generator, to be closed like `generate`."""


class BackendHandle:
    """One configured backend of a model, with what `select_backend` needs to choose.

    `name` is unique in its model; `base_url` is what a session pins ("" where the backend has no address); `plugin` made
    it; it may be silent for `time_limit_s` within an answer (None: for as long as it likes).
    """

    def __init__(
        self,
        backend: Backend,
        *,
        name: str,
        kind: str,
        model: str,
        base_url: str = "",
        plugin: str = "",
        time_limit_s: float | None = None,
    ) -> None:
        self.backend = backend
        self.plugin = plugin
        self.time_limit_s = time_limit_s
        self.name = name
        self.kind = kind
        self.model = model
        self.base_url = base_url
        self.in_flight = 0
        self.failures = 0
        self.unhealthy_until = 0.0
        self.last_error: str | None = None
        self._said: set[str] = set()

    @property
    def healthy(self) -> bool:
        """Whether it may be asked now: it has not failed, or its cool-down is over and it may be tried again."""
        return time.monotonic() >= self.unhealthy_until

    def warn_once(self, shortcoming: str) -> None:
        """Log what is unsafe about it, the first time that shows."""
        if shortcoming not in self._said:
            self._said.add(shortcoming)
            log.warning("backend %s of %s %s", self.name, self.model, shortcoming)

    def succeeded(self) -> None:
        """It answered: no cool-down any more."""
        self.failures = 0
        self.unhealthy_until = 0.0
        self.last_error = None

    def failed(self, reason: str) -> None:
        """It could not be reached or used: left out for a while, longer each time in a row."""
        self.failures += 1
        self.last_error = reason
        self.unhealthy_until = time.monotonic() + min(MAX_COOL_DOWN_S, 2.0 ** (self.failures - 1))

    def __repr__(self) -> str:
        return f"<BackendHandle {self.name} of {self.model}, {self.in_flight} in flight>"
