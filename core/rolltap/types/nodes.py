"""A recorded node as hooks and exports see it, and how its ids and logprobs are packed.

Token ids and logprobs are packed (4 and 8 bytes a token) so that a long session stays small in memory and in a
store; `pack_ids` and `pack_logprobs` make them, `unpack_ids` and `unpack_logprobs` read them.
"""

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from rolltap.types.chat import Message, ToolCall
from rolltap.types.sequences import PackedNode


class NodeView(Protocol):
    """A recorded node as hooks and exports see it. Whole sequences are put together when they are asked for.

    Nothing of it can be changed: sequences and dicts refuse, copies are the caller's own.
    """

    @property
    def node_id(self) -> str:
        """Unique in its session."""

    @property
    def num_tokens(self) -> int:
        """How long the sequence is, without putting it together."""

    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and completion ids of the whole sequence; empty for text-only backends."""

    @property
    def masked_tokens(self) -> Sequence[int]:
        """`tokens`, with -100 wherever this sequence must not be trained on."""

    @property
    def logprobs(self) -> Sequence[float | None]:
        """The engine's logprobs where `masked_tokens` is not -100, and 1.0 elsewhere."""

    @property
    def versions(self) -> Sequence[int | str | None]:
        """The version of the weights that wrote each token, where it is known; None where the sequence is masked."""

    @property
    def packed(self) -> PackedNode:
        """The same sequences as arrays, with what was generated as spans: for exports of many tokens."""

    @property
    def full_text(self) -> str:
        """The decoded sequence."""

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The whole conversation, the answer included, in the form of OpenAI's Chat Completions."""

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools that the model was offered, in OpenAI's form."""

    @property
    def rewards(self) -> Mapping[str, float]:
        """The rewards that hold for this node, by name."""

    @property
    def reward(self) -> float | None:
        """The reward named "reward", else the only one there is; None without one."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """`node_id`, `parent_id`, `finish_reason`, `trainable` and the rest that core/README.md lists."""


class TreeView(Struct, frozen=True, kw_only=True):
    """How a tree of a session's forest began: what `label_tree` is asked about."""

    root_id: str
    """The node of its first call."""
    first: bool
    """Whether it is the session's first tree."""
    messages: tuple[Message, ...]
    """What its first call was sent."""
    tools: Sequence[Mapping[str, Any]] = ()
    """The tools that it was offered, in OpenAI's form."""
    model: str = ""
    asked_model: str = ""
    """The model that the client named."""
    client: str = ""
    """The client's `User-Agent`."""
    max_tokens: int | None = None
    calls_before: tuple[ToolCall, ...] = ()
    """The tool calls that the session's other trees had made before it began."""


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


def _unpacked(kind: str, data: bytes) -> "array[Any]":
    values = array(kind, data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def unpack_ids(data: bytes) -> "array[int]":
    """The ids that `pack_ids` packed."""
    return _unpacked("i", data)


def unpack_logprobs(data: bytes) -> "array[float]":
    """The logprobs that `pack_logprobs` packed."""
    return _unpacked("d", data)
