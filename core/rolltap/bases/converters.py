"""What message converters subclass: one wire format ("dialect") in and out."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from operator import is_
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


class ReadBefore:
    """What a converter has read of a session's earlier requests: a turn repeats the messages of the turns before it.

    An entry of a body's list is the same object as in an earlier body where the client has sent the same bytes.
    """

    _MOST_KEPT = 4

    def __init__(self) -> None:
        self._kept: dict[str, deque[tuple[Sequence[Any], Sequence[Any]]]] = {}

    def known(self, name: str, entries: object) -> Sequence[Any]:
        """What the first of a list's entries were read as, as far as an earlier list called `name` began with them."""
        best: Sequence[Any] = ()
        if not isinstance(entries, list):
            return best
        for before, read in reversed(self._kept.get(name, ())):
            alike = sum(takewhile(bool, map(is_, before, entries)))
            if alike > len(best):
                best = read[:alike]
        return best

    def keep(self, name: str, entries: Sequence[Any], read: Sequence[Any]) -> None:
        """Keep what each entry of a list was read as."""
        kept = self._kept.setdefault(name, deque(maxlen=self._MOST_KEPT))
        for at, (before, _) in enumerate(kept):
            if len(before) <= len(entries) and all(map(is_, before, entries)):
                del kept[at]  # this list goes on from it
                break
        kept.append((entries, read))


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

    def decode_next(self, body: dict[str, Any], replies: Replies, before: ReadBefore) -> ChatRequest:  # noqa: ARG002
        """The same in a session, where a long conversation need not be read anew with each turn.

        What is read may be kept in `before` for the next request. The body is shared: don't change it. The default is
        `decode_within`.
        """
        return self.decode_within(body, replies)

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
