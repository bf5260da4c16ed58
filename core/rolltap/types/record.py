"""What is kept of a session: its settings, and the entries of its log.

Token ids and logprobs are packed (4 and 8 bytes a token) so that a long session stays small in memory and in a
store; `pack_ids` and `pack_logprobs` make them, `unpack_ids` and `unpack_logprobs` read them.
"""

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct, field

from rolltap.types.chat import Message
from rolltap.types.generation import FinishReason
from rolltap.types.sequences import PackedNode

Delivery = Literal["delivered", "aborted"]


class SessionInfo(Struct, kw_only=True):
    """The settings a session was created with; what hooks are given as `session`."""

    uuid: str
    model_name: str
    tool_parser: str
    base_url: str | None = None
    """The backend that the session is pinned to, by its address."""
    track_tree: bool = False
    sampling: dict[str, Any] = field(default_factory=dict)
    """Sampling parameters that win over the client's."""
    metadata: dict[str, Any] = field(default_factory=dict)
    created_at: float = 0.0
    """Seconds since the epoch."""


class Fingerprint(Struct, array_like=True, frozen=True):
    """A message reduced to what tells it from another: hashes of its canonical content and calls."""

    role: str
    content: bytes
    calls: bytes = b""
    reasoning: bytes = b""
    """Tells two outputs with the same answer apart; clients drop thinking, so no match depends on it."""


class Context(Struct, array_like=True, frozen=True):
    """What a conversation stands on besides its messages: another one makes another tree."""

    model: str
    tools: bytes
    template_kwargs: bytes


class Prompt(Struct, kw_only=True, omit_defaults=True):
    """What a call added in front of its output: the part that its parent does not have."""

    ids: bytes = b""
    """Packed token ids, sent to the engine after the parent's; empty for text-only backends."""
    text: str | None = None
    """The same as text, kept where no ids tell it (text-only backends) or where a raw prompt is matched by it."""
    messages: list[Fingerprint] = field(default_factory=list)


class Output(Struct, kw_only=True, omit_defaults=True):
    """What the model produced in one choice of a call; with the call's prompt it is a node."""

    node_id: str
    ids: bytes = b""
    logprobs: bytes | None = None
    """Packed, one for each id; None where the engine gave none or not one for each."""
    text: str | None = None
    """Kept where `Prompt.text` is."""
    message: Fingerprint | None = None
    key: bytes = b""
    """The hash chain up to and including this output: what a later request is matched by."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    untrainable_reason: str | None = None
    """Why this output must not be trained on; None where it is exact."""
    delivery: Delivery = "delivered"
    logprobs_mode: str | None = None
    weight_versions: list[Any] | None = None
    routed_experts: bytes | None = None
    sampling_mask: bytes | None = None


class SessionCreated(Struct, tag="created"):
    """The first entry of every log."""

    info: SessionInfo


class NodesRecorded(Struct, tag="nodes", kw_only=True, omit_defaults=True):
    """A call that ended: its prompt and its outputs, which become sibling nodes below `parent_id`."""

    parent_id: str | None = None
    context: Context
    prompt: Prompt
    outputs: list[Output]
    branch_reason: str | None = None
    backend: str
    model: str
    sampling: dict[str, Any] = field(default_factory=dict)
    """The effective parameters, as sent to the backend."""
    created_at: float


class DeliveryChanged(Struct, tag="delivery"):
    """The client left before it had everything."""

    node_ids: list[str]
    delivery: Delivery


class ReplyKept(Struct, tag="reply", kw_only=True):
    """A reply that a later request may go on from by its id, where the dialect has that."""

    id: str
    previous_id: str | None = None
    messages: list[Message]
    """What the request added to the previous reply's conversation, and the answer."""


class SessionDeleted(Struct, tag="deleted"):
    """The last entry of a log whose session was deleted."""


Entry = SessionCreated | NodesRecorded | DeliveryChanged | ReplyKept | SessionDeleted

_encoder = msgspec.msgpack.Encoder()
_decoder: "msgspec.msgpack.Decoder[Entry]" = msgspec.msgpack.Decoder(Entry)


def encode_entry(entry: Entry) -> bytes:
    """An entry as bytes (MessagePack), for a durable store."""
    return _encoder.encode(entry)


def decode_entry(data: bytes) -> Entry:
    """The entry that `encode_entry` made these bytes of. Raises `msgspec.ValidationError` on others."""
    return _decoder.decode(data)


class NodeView(Protocol):
    """A recorded node as hooks and exports see it. Whole sequences are put together when they are asked for."""

    @property
    def node_id(self) -> str:
        """Unique in its session."""

    @property
    def tokens(self) -> list[int]:
        """Prompt and completion ids of the whole sequence; empty for text-only backends."""

    @property
    def masked_tokens(self) -> list[int]:
        """`tokens`, with -100 wherever this sequence must not be trained on."""

    @property
    def logprobs(self) -> list[float | None]:
        """The engine's logprobs where `masked_tokens` is not -100, and 1.0 elsewhere."""

    @property
    def packed(self) -> PackedNode:
        """The same as arrays, with what was generated as spans: for sequences of many tokens."""

    @property
    def messages(self) -> Sequence[Mapping[str, Any]] | None:
        """The whole conversation in OpenAI's form; None where the sequence is not a conversation."""

    @property
    def tools(self) -> Sequence[Mapping[str, Any]] | None:
        """The tools that the last call offered, in OpenAI's form."""

    @property
    def full_text(self) -> str:
        """The decoded sequence."""

    @property
    def metadata(self) -> dict[str, Any]:
        """`node_id`, `parent_id`, `finish_reason`, `trainable` and the rest that core/README.md lists."""


def _packed(values: "array[Any]") -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token ids as little-endian 32-bit integers."""
    return _packed(array("i", ids))


def pack_logprobs(logprobs: Iterable[float]) -> bytes:
    """Logprobs as little-endian doubles: exactly the values the engine gave."""
    return _packed(array("d", logprobs))


def _unpacked(kind: str, data: bytes | bytearray) -> "array[Any]":
    values = array(kind, data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def unpack_ids(data: bytes | bytearray) -> "array[int]":
    """The ids that `pack_ids` packed."""
    return _unpacked("i", data)


def unpack_logprobs(data: bytes | bytearray) -> "array[float]":
    """The logprobs that `pack_logprobs` packed."""
    return _unpacked("d", data)
