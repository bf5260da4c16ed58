"""The ledger: the entries of a session's log, which is the truth about the session.

Everything else (trees, masks, branch reasons, listings) is the fold of these entries. They are frozen and are never
changed once stored; what changes later, such as a delivery or a reward, is an entry of its own.
"""

from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from rolltap.errors import FormatError
from rolltap.types.chat import Message
from rolltap.types.frozen import EMPTY, freeze_fields
from rolltap.types.generation import FinishReason

FORMAT = (1, 0)
"""Major and minor version of the entries' format. A reader takes any minor version of its own major version."""

Delivery = Literal["delivered", "aborted"]


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a session may use up; a call past a limit is refused."""

    turns: int | None = None
    """Calls that were recorded."""
    tokens: int | None = None
    """Generated tokens, over all calls."""
    deadline_s: float | None = None
    """Seconds after the session was created."""


class SessionInfo(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The settings a session was created with; what hooks are given as `session`."""

    uuid: str
    model_name: str
    tool_parser: str = ""
    base_url: str | None = None
    """The backend that the session is pinned to, by its address."""
    track_tree: bool = False
    sampling: dict[str, Any] = EMPTY
    """Sampling parameters that win over the client's."""
    metadata: dict[str, Any] = EMPTY
    group: str = ""
    """Sessions of one task share a group: what group-relative trainers compare."""
    labels: dict[str, Any] = EMPTY
    limits: Limits = Limits()
    created_at: float = 0.0
    """Seconds since the epoch."""

    def __post_init__(self) -> None:
        """Freeze what was given as dicts."""
        freeze_fields(self, values=("sampling", "metadata", "labels"))


class Context(Struct, array_like=True, frozen=True):
    """What a conversation stands on besides its messages: another one makes another tree."""

    model: str
    tools: bytes = b""
    """Hash of the tools as the client sent them, b"" for none: names a `Definition` of the session."""
    template_kwargs: bytes = b""
    """Hash of the template's variables, likewise."""


class Definition(Struct, array_like=True, frozen=True):
    """Tools or template variables, kept once a session under the hash of their JSON."""

    hash: bytes
    value: Any


class Prompt(Struct, kw_only=True, omit_defaults=True, frozen=True):
    """What a call added in front of its output: the part that its parent does not have."""

    ids: bytes = b""
    """Packed token ids, sent to the engine after the parent's; empty for text-only backends."""
    text: str | None = None
    """A raw prompt's text, which a later raw prompt is matched by; None for a chat."""
    messages: tuple[Message, ...] = ()
    """The messages after those of `CallRecorded.after_id`'s conversation."""


class Output(Struct, kw_only=True, omit_defaults=True, frozen=True):
    """What the model produced in one choice of a call; with the call's prompt it is a node."""

    node_id: str
    ids: bytes = b""
    logprobs: bytes | None = None
    """Packed, one for each id; None where the engine gave none or not one for each."""
    text: str | None = None
    """A raw completion's text; None for a chat."""
    message: Message | None = None
    """The answer as it was read: thinking, content, and calls with the arguments as the model wrote them."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    untrainable_reason: str | None = None
    """Why this output must not be trained on; None where it is exact."""
    drifted: bool = False
    """Whether the engine saw another prompt than it was sent."""
    delivery: Delivery = "delivered"
    error: str | None = None
    """What ended the output early, where it was not the model, a limit of the request or the client."""
    logprobs_mode: str | None = None
    prompt_proof: str | None = None
    """How the engine showed that it saw the prompt it was sent: "logprobs", "echo", or "length" alone."""
    weight_versions: tuple[Any, ...] | None = None
    """Spans `[start, end, version]` over `ids`."""
    continued: int = 0
    """How often the engine aborted it and it was gone on from."""
    routed_experts: bytes | None = None
    sampling_mask: bytes | None = None

    def __post_init__(self) -> None:
        """Freeze the spans."""
        freeze_fields(self, tuples=("weight_versions",))


class Times(Struct, array_like=True, frozen=True):
    """When a call was received, sent to a backend, answered first and ended: seconds since the epoch."""

    received: float = 0.0
    sent: float = 0.0
    first_token: float | None = None
    ended: float = 0.0


class TokenCounts(Struct, array_like=True, frozen=True):
    """A call's tokens, over all its choices."""

    prompt: int = 0
    generated: int = 0
    cached: int | None = None
    """The part of the prompt that the engine had cached, where it says."""


class EntryBase(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every entry has."""

    newer: bytes = b""
    """The whole entry as a newer version wrote it, so that fields unknown here are not lost; b"" for one of this version."""


class SessionCreated(EntryBase, tag="created", frozen=True, kw_only=True):
    """The first entry of every log."""

    info: SessionInfo


class CallBegun(EntryBase, tag="begun", frozen=True, kw_only=True):
    """A call is about to be sent to a backend: written first, so that one lost with its server is visible."""

    call_id: str
    request_id: str = ""
    begun_at: float = 0.0


class CallFailed(EntryBase, tag="failed", frozen=True, kw_only=True):
    """A call that had begun ended without anything to record."""

    call_id: str
    reason: str = ""


class CallRecorded(EntryBase, tag="call", frozen=True, kw_only=True, omit_defaults=True):
    """A call that ended: its prompt and its outputs, which become sibling nodes below `parent_id`."""

    call_id: str
    parent_id: str | None = None
    """The node whose token ids the prompt's ids follow."""
    after_id: str | None = None
    """The node whose conversation the prompt's messages follow: `parent_id`, unless the template shows history anew."""
    context: Context
    definitions: tuple[Definition, ...] = ()
    """Tools and template variables that the log has not kept before."""
    prompt: Prompt
    outputs: tuple[Output, ...]
    branch_note: str | None = None
    """A reason to branch that the messages don't show."""
    notes: tuple[str, ...] = ()
    """What a reader of the node should know, in words, such as an attachment that the model could not read."""
    backend: str
    asked_model: str = ""
    """The model that the client named, where another one answered."""
    sampling: dict[str, Any] = EMPTY
    """The effective parameters, as sent to the backend."""
    dialect: str = ""
    client: str = ""
    """The client's `User-Agent`."""
    request_id: str = ""
    streamed: bool = False
    times: Times = Times()
    usage: TokenCounts = TokenCounts()
    reply_id: str = ""
    """The reply's id, as the client knows it; it points at the first output."""
    kept: bool = False
    """Whether a later request may go on from `reply_id`."""
    num_instructions: int = 0
    """How many of the conversation's first messages hold for this call alone."""

    def __post_init__(self) -> None:
        """Freeze what was given as lists and dicts."""
        freeze_fields(self, tuples=("definitions", "outputs", "notes"), values=("sampling",))


class DeliveryChanged(EntryBase, tag="delivery", frozen=True, kw_only=True):
    """The client left before it had everything; or has it now, where an earlier one had left."""

    node_ids: tuple[str, ...]
    delivery: Delivery


class RewardGiven(EntryBase, tag="reward", frozen=True, kw_only=True):
    """A reward; the last of a name wins. Without `node_id` it is the session's, and every leaf's."""

    value: float
    name: str = "reward"
    node_id: str | None = None
    given_at: float = 0.0


class ReplyForgotten(EntryBase, tag="forgotten", frozen=True, kw_only=True):
    """The client has deleted a reply: nothing may go on from it by its id. Its nodes stay."""

    reply_id: str


class SessionSealed(EntryBase, tag="sealed", frozen=True, kw_only=True):
    """No call may be added any more; rewards may."""

    snapshot: str
    """A digest of everything that was recorded."""
    sealed_at: float = 0.0


class SessionDeleted(EntryBase, tag="deleted", frozen=True, kw_only=True):
    """The tombstone: the last entry of a log whose session was deleted."""


class UnknownEntry(EntryBase, tag="unknown", frozen=True, kw_only=True):
    """An entry of a kind that only a newer version knows; kept, and otherwise ignored."""


Entry = (
    SessionCreated
    | CallBegun
    | CallFailed
    | CallRecorded
    | DeliveryChanged
    | RewardGiven
    | ReplyForgotten
    | SessionSealed
    | SessionDeleted
    | UnknownEntry
)


class _Envelope(Struct, array_like=True, frozen=True):
    """An entry with the version of its format in front."""

    major: int
    minor: int
    entry: msgspec.Raw


class _Writing(Struct, array_like=True, frozen=True):
    major: int
    minor: int
    entry: Entry


_encoder = msgspec.msgpack.Encoder()
_envelopes = msgspec.msgpack.Decoder(_Envelope)
_entries: "msgspec.msgpack.Decoder[Entry]" = msgspec.msgpack.Decoder(Entry)


def encode_entry(entry: Entry) -> bytes:
    """An entry as bytes (MessagePack with the format's version), for a durable store."""
    return entry.newer or _encoder.encode(_Writing(*FORMAT, entry))


def decode_entry(data: bytes) -> Entry:
    """The entry that `encode_entry` made these bytes of.

    Raises `FormatError` for bytes that are none, and for an entry of a newer major version. Of a newer minor version
    everything is kept: `encode_entry` gives the same bytes again.
    """
    try:
        envelope = _envelopes.decode(data)
        if envelope.major > FORMAT[0]:
            raise FormatError(
                f"the entry has format {envelope.major}.{envelope.minor}, and this rolltap reads up to {FORMAT[0]}.x; "
                "use the version that wrote it, or a newer one"
            )
        if envelope.minor <= FORMAT[1] or envelope.major < FORMAT[0]:
            return _entries.decode(envelope.entry)
        return _decode_newer(data, envelope)
    except msgspec.MsgspecError as error:
        raise FormatError(f"{len(data)} bytes are no entry of rolltap's ledger: {error}") from error


def _decode_newer(data: bytes, envelope: _Envelope) -> Entry:
    known = {kind.__struct_config__.tag for kind in Entry.__args__}
    if msgspec.msgpack.decode(envelope.entry).get("type") not in known:
        return UnknownEntry(newer=data)
    return msgspec.structs.replace(_entries.decode(envelope.entry), newer=data)


class Event(Struct, frozen=True):
    """An entry as it was recorded: what a subscription gives."""

    session: str
    seq: int
    """The entry's number in its session's log: 1, 2, 3, …"""
    entry: Entry


class SessionSummary(SessionInfo, kw_only=True, frozen=True):
    """A session as listings show it: its settings, and what its log adds up to."""

    cursor: str = ""
    """In a listing: what `after` takes to go on behind this session, also when that is deleted meanwhile."""
    last_accessed: float = 0.0
    num_nodes: int = 0
    """Leaves; with `track_tree` all completions."""
    num_calls: int = 0
    num_tokens: int = 0
    """Generated tokens, over all calls."""
    num_untrainable: int = 0
    num_drifted: int = 0
    """Completions whose engine saw another prompt than it was sent."""
    state: Literal["open", "sealed"] = "open"
    incomplete: int = 0
    """Calls that were in flight when their server died."""
    in_flight: int = 0
    rewards: dict[str, float] = field(default_factory=dict)
    reward: float | None = None
