"""What message converters subclass: one wire format ("dialect") in and out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from msgspec import Struct, field

from rolltap.errors import ErrorInfo
from rolltap.types.chat import ChatRequest, Message
from rolltap.types.generation import ChatDelta, Completion

Replies = Callable[[str], Message | None]
"""A reply of the same session by its id; None where the session has kept none of that id."""


class ErrorReply(Struct, frozen=True, kw_only=True):
    """An error in a dialect's own words."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


class StreamEncoder(ABC):
    """Turns the deltas of one reply into the bytes of an event stream. One instance a reply.

    Called in this order: `start`, then `delta` for each delta, then `finish` or `error`. `ping` may come between.
    Each returns the frames to send now, or b"".
    """

    content_type: ClassVar[str] = "text/event-stream; charset=utf-8"
    """What the frames are together."""

    @abstractmethod
    def start(self) -> bytes:
        """The frames before the first delta."""

    @abstractmethod
    def delta(self, delta: ChatDelta) -> bytes:
        """The frames for one delta. Its tool calls are always `ToolCallDelta`."""

    @abstractmethod
    def finish(self, completion: Completion) -> bytes:
        """The frames after the last delta; `completion` is the whole reply with its usage."""

    @abstractmethod
    def error(self, info: ErrorInfo) -> bytes:
        """The frames that end a stream which failed after it began."""

    def ping(self) -> bytes:
        """A frame that says nothing and keeps the connection open."""
        return b": ping\n\n"


class MessageConverter(ABC):
    """One dialect, in and out."""

    dialect: ClassVar[str]
    id_prefix: ClassVar[str] = ""
    """What the ids of replies begin with, such as "chatcmpl-"."""

    @abstractmethod
    def decode(self, body: dict[str, Any]) -> ChatRequest:
        """The request that the client's JSON body is. Raises `BadRequest` that names a wrong field."""

    def decode_within(self, body: dict[str, Any], replies: Replies) -> ChatRequest:  # noqa: ARG002 - for subclasses
        """The request of a body that may point at what its session's replies said. The default is `decode`."""
        return self.decode(body)

    def decode_leniently(self, body: dict[str, Any]) -> ChatRequest:
        """The request of a caller in this process, such as one of `ChatBackend.send_message`.

        What `decode` refuses may be left out or put right here. The default is `decode`.
        """
        return self.decode(body)

    @abstractmethod
    def encode(self, request: ChatRequest, completion: Completion) -> dict[str, Any]:
        """A plain reply's JSON body."""

    @abstractmethod
    def stream(self, request: ChatRequest, completion: Completion) -> StreamEncoder:
        """An encoder for a streamed reply; `completion` has its id, model and time, and no choices yet."""

    def encode_count(self, num_tokens: int) -> dict[str, Any]:
        """The JSON body that tells how many tokens a request's prompt has, where the dialect has such a question."""
        return {"num_tokens": num_tokens}

    def recognises(self, path: str, headers: Mapping[str, str]) -> bool:  # noqa: ARG002 - for those that can tell
        """Whether a request that is for none of this dialect's routes comes from one of its clients all the same.

        It is then answered in their form: that there is no such route, or which models there are.
        """
        return False

    def encode_models(self, names: Sequence[str]) -> dict[str, Any] | None:  # noqa: ARG002 - for those that have one
        """The list of models, where this dialect has a form of its own; None: as OpenAI lists them."""
        return None

    def encode_model(self, name: str) -> dict[str, Any] | None:  # noqa: ARG002 - as above
        """One model, as `encode_models`."""
        return None

    @abstractmethod
    def error(self, info: ErrorInfo, request_id: str) -> ErrorReply:
        """An error as this dialect's clients expect it."""
