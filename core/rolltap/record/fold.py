"""A session as its log tells it: the fold of the entries, each taken in proportion to what is new in it."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from rolltap.errors import BadRequest
from rolltap.record.definitions import Definitions
from rolltap.record.forest import Forest, Node
from rolltap.types.chat import Message
from rolltap.types.frozen import FrozenDict
from rolltap.types.ledger import (
    CallBegun,
    CallFailed,
    CallRecorded,
    DeliveryChanged,
    Entry,
    ReplyForgotten,
    RewardGiven,
    SessionCreated,
    SessionDeleted,
    SessionInfo,
    SessionSealed,
    UnknownEntry,
)


class SessionRecord:
    """What a session's log says, up to entry number `seq`."""

    def __init__(self) -> None:
        self.seq = 0
        self.info: SessionInfo | None = None
        """None until the first entry is taken."""
        self.definitions = Definitions()
        self.forest = Forest(self.definitions)
        self.begun: dict[str, CallBegun] = {}
        """Calls that have begun and not ended: in flight, or lost with their server."""
        self.rewards: dict[str, float] = {}
        """The session's own, by name; each node may have others."""
        self.sealed: SessionSealed | None = None
        self.deleted = False
        self.last_at = 0.0
        """When something was last recorded in it; seconds since the epoch."""
        self.num_calls = 0
        self.num_generated = 0
        self.num_untrainable = 0
        self.num_drifted = 0
        self._replies: dict[str, Node] = {}

    def apply(self, seq: int, entry: Entry) -> list[Node]:
        """Take entry number `seq`, the next one; return the nodes it added."""
        self.seq = seq
        match entry:
            case SessionCreated():
                self.info = entry.info
                self._used(entry.info.created_at)
            case CallBegun():
                self.begun[entry.call_id] = entry
                self._used(entry.begun_at)
            case CallFailed():
                self.begun.pop(entry.call_id, None)
            case CallRecorded():
                return self._add_call(entry)
            case DeliveryChanged():
                for node_id in entry.node_ids:
                    self.forest[node_id].delivery = entry.delivery
            case RewardGiven():
                self._add_reward(entry)
            case SessionSealed() | SessionDeleted() | ReplyForgotten() | UnknownEntry():
                self._close(entry)
        return []

    def _used(self, at: float) -> None:
        self.last_at = max(self.last_at, at)

    def _close(self, entry: SessionSealed | SessionDeleted | ReplyForgotten | UnknownEntry) -> None:
        if isinstance(entry, ReplyForgotten):
            self._replies.pop(entry.reply_id, None)
        if isinstance(entry, SessionSealed):
            self.sealed = self.sealed or entry
        self.deleted = self.deleted or isinstance(entry, SessionDeleted)

    def _add_call(self, call: CallRecorded) -> list[Node]:
        self.begun.pop(call.call_id, None)
        self._used(call.times.ended)
        for definition in call.definitions:
            self.definitions.add(definition)
        nodes = self.forest.add(call)
        if call.reply_id and nodes:
            self._replies[call.reply_id] = nodes[0]
        self.num_calls += 1
        for node in nodes:
            self.num_generated += len(node.output.ids) // 4
            self.num_untrainable += not node.trainable
            self.num_drifted += node.output.drifted
        return nodes

    def _add_reward(self, entry: RewardGiven) -> None:
        self._used(entry.given_at)
        if entry.node_id is None:
            self.rewards[entry.name] = entry.value
        elif entry.node_id in self.forest:
            self.forest[entry.node_id].rewards[entry.name] = entry.value

    def rewards_of(self, node: Node) -> Mapping[str, float]:
        """The rewards that hold for a node: its own over the session's."""
        return FrozenDict({**self.rewards, **node.rewards})

    def reply(self, reply_id: str) -> Node | None:
        """The node of a reply that a later request may refer to; None where none of that id was kept."""
        node = self._replies.get(reply_id)
        return node if node is not None and node.call.kept else None

    def conversation_of(self, reply_id: str) -> list[Message]:
        """The messages up to and including a kept reply. Raises `BadRequest`, worded as OpenAI does."""
        node = self.reply(reply_id)
        if node is None:
            raise BadRequest(
                f"Previous response with id {reply_id!r} not found: this session has kept no such reply; "
                "send the conversation instead of its id",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        return self.messages(node)[node.call.num_instructions :]

    def messages(self, node: Node) -> list[Message]:
        """The whole conversation of a node, its output included."""
        parts: list[Sequence[Message]] = []
        for at in self.conversation_nodes(node).values():
            if at.output.message is not None:
                parts.append((at.output.message,))
            parts.append(at.prompt.messages)
        return [message for part in reversed(parts) for message in part]

    def conversation_nodes(self, node: Node) -> dict[str, Node]:
        """The nodes that a node's conversation is made of, by their ids, from itself back to the first."""
        nodes: dict[str, Node] = {}
        at: Node | None = node
        while at is not None:
            nodes[at.id] = at
            at = self.forest[at.call.after_id] if at.call.after_id is not None else None
        return nodes

    def tools(self, node: Node) -> Sequence[Mapping[str, Any]]:
        """The tools that a node's conversation was offered."""
        return self.definitions.tools(node.call.context)

    def digest(self) -> str:
        """A digest of everything that was recorded: nodes, ids, logprobs and why they are (un)trainable."""
        found = blake2b(digest_size=32)
        for node in self.forest:
            output = node.output
            for part in (node.id, node.call.parent_id or "", output.untrainable_reason or ""):
                found.update(part.encode() + b"\0")
            for data in (node.prompt.ids, output.ids, output.logprobs or b""):
                found.update(len(data).to_bytes(8, "little") + data)
        return found.hexdigest()
