"""What backends subclass, and how the core sees a configured one."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any, ClassVar, Literal

from rolltap.errors import Unsupported
from rolltap.types.chat import ChatRequest, Sampling
from rolltap.types.generation import ChatDelta, TokenDelta, TokenRequest

PauseMode = Literal["abort", "keep", "wait"]

SAMPLING_PARAMETERS = frozenset(Sampling.__struct_fields__) - {"extra"}
"""Every parameter that `Sampling` has a name for."""


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

    async def pause(self, mode: PauseMode) -> None:
        """Stop generating, for an update of the weights, until `resume`.

        "abort": what runs ends with finish_reason "abort" and what it has; "keep": it stands still; "wait": it is
        finished first. Raises `Unsupported` where the engine has no such thing.
        """
        raise Unsupported(f"{type(self).__name__} can't be paused (mode {mode!r})")

    async def resume(self) -> None:
        """Go on generating. Raises `Unsupported` as `pause` does."""
        raise Unsupported(f"{type(self).__name__} can't be paused, so it can't be resumed")

    async def is_paused(self) -> bool:
        """Whether the engine stands still now. False where it can't."""
        return False

    async def set_weights(self, version: int | str, path: str | None = None) -> None:  # noqa: ARG002 - of what the default can't do
        """Note that the weights are of this version from now on; with `path`, load them from there first.

        Raises `Unsupported` where the engine can't load weights.
        """
        if path is not None:
            raise Unsupported(f"{type(self).__name__} can't load weights")

    async def weight_version(self) -> int | str | None:
        """The version of the engine's weights, where it knows."""
        return None


class TokenBackend(Backend):
    """A backend that works in tokens: ids in, ids and logprobs out."""

    stops_at_strings: ClassVar[bool] = False
    """Whether it ends a choice at `sampling.stop` itself. Else it is always asked for a stream where a request has stop
    strings, and ended once one is found."""

    @abstractmethod
    def generate(self, request: TokenRequest) -> AsyncIterator[TokenDelta]:
        """Generate `request.sampling.n` choices after `request.prompt_ids`; yield tokens as they come.

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


class BackendView(ABC):
    """A configured backend of a model as plugins see it: nothing of it can be set."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """Unique in its model, such as "vllm-0"."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """The `kind` of its table in the config."""

    @property
    @abstractmethod
    def model(self) -> str:
        """The model that it answers for."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Its address, which a session may be pinned to; "" where it has none."""

    @property
    @abstractmethod
    def healthy(self) -> bool:
        """Whether it may be asked now: it has not failed, or may be tried again."""

    @property
    @abstractmethod
    def retry_in_s(self) -> float:
        """Seconds until it may be tried again; 0.0 for a healthy one."""

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """How many requests it is answering."""

    @property
    @abstractmethod
    def queued(self) -> int:
        """How many requests wait for a place, because as many as may be are in flight."""

    @property
    @abstractmethod
    def last_error(self) -> str | None:
        """What it failed with last; None since it last answered."""
