"""What a trainer gets of a session: whole sequences with masks and logprobs.

Each generated token is trainable in one exported sequence only. Where several leaves share an ancestor, the first
trainable one below it owns the ancestor's tokens; in the others they are masked.
"""

import base64
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from rolltap.record.fold import SessionRecord
from rolltap.record.forest import Node
from rolltap.record.lineage import root_of
from rolltap.record.openai_form import as_openai
from rolltap.record.spans import version_of_each, version_spans
from rolltap.types.frozen import FrozenDict, FrozenList, frozen
from rolltap.types.nodes import unpack_ids, unpack_logprobs
from rolltap.types.sequences import GeneratedSpan, PackedNode

MASKED = -100
MASKED_LOGPROB = 1.0
_CONTEXT = array("d", [MASKED_LOGPROB])

Decode = Callable[[str, Sequence[int]], str]
"""The text of ids, by the model's name."""


class RecordedNode:
    """A node as hooks and exports see it (`rolltap.record.NodeView`); sequences are put together when asked for."""

    def __init__(
        self, node: Node, record: SessionRecord, *, tree: bool, unmask: bool, decode: Decode | None
    ) -> None:
        self._node = node
        self._record = record
        self._tree = tree
        self._unmask = unmask
        self._decode = decode
        self.incomplete = 0
        """How many calls of the session were lost with their server."""
        self.label = ""
        """What the tree is in the session, such as "main" or "sub-agent"; "" where nobody has said."""

    @property
    def node_id(self) -> str:
        """Unique in its session."""
        return self._node.id

    @property
    def num_tokens(self) -> int:
        """How long the sequence is, without putting it together."""
        return self._node.num_tokens

    @property
    def root(self) -> Node:
        """The first node of its tree."""
        return root_of(self._node)

    @cached_property
    def _path(self) -> list[tuple[Node, bool]]:
        """The nodes from the root on, and of each whether its output is trained on in this sequence."""
        path = self._node.path()
        if self._unmask:
            return [(node, True) for node in path]
        shown = []
        owned = True
        for node in reversed(path):
            shown.append((node, owned and node.trainable))
            owned = owned and not self._tree and node.parent is not None and node.parent.heir is node
        shown.reverse()
        return shown

    @cached_property
    def packed(self) -> PackedNode:
        """The sequences as arrays; see `PackedNode`."""
        tokens, logprobs, spans = array("i"), array("d"), []
        conversation = self._record.conversation_nodes(self._node)
        for node, shown in self._path:
            tokens.extend(unpack_ids(node.prompt.ids))
            start = len(tokens)
            tokens.extend(unpack_ids(node.output.ids))
            logprobs.extend(_CONTEXT * (start - len(logprobs)))
            logprobs.extend(_logprobs(node) if shown else _CONTEXT * (len(tokens) - start))
            if len(tokens) > start:
                spans.append(_span(node, start, len(tokens), trained=shown, said=node.id in conversation))
        masked = array("i", [MASKED]) * len(tokens)
        for span in spans:
            if span.trained:
                masked[span.start : span.stop] = tokens[span.start : span.stop]
        return PackedNode(tokens=tokens, masked=masked, logprobs=logprobs, spans=tuple(spans))

    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and completion ids of the whole sequence; empty for text-only backends."""
        return FrozenList(self.packed.tokens)

    @property
    def masked_tokens(self) -> Sequence[int]:
        """`tokens`, with -100 wherever this sequence must not be trained on."""
        return FrozenList(self.packed.masked)

    @property
    def logprobs(self) -> Sequence[float | None]:
        """The engine's logprobs where `masked_tokens` is not -100, 1.0 elsewhere; None where it gave none."""
        values = self.packed.logprobs
        if any(map(math.isnan, values)):
            return FrozenList([None if math.isnan(value) else value for value in values])
        return FrozenList(values)

    @property
    def versions(self) -> Sequence[int | str | None]:
        """The version of the weights that wrote each token, where it is known; None where the sequence is masked."""
        values: list[int | str | None] = []
        for node, shown in self._path:
            values += [None] * (len(node.prompt.ids) // 4)
            own = version_of_each(node.output.weight_versions, len(node.output.ids) // 4)
            values += own if shown else [None] * len(own)
        return FrozenList(values)

    @property
    def full_text(self) -> str:
        """The decoded sequence; for text-only backends the conversation as text."""
        if self._node.has_tokens:
            return self._decode(self._node.model, self.packed.tokens) if self._decode is not None else ""
        lines = []
        for message in self._record.messages(self._node):
            calls = "".join(f"\n[call {call.name} {call.arguments}]" for call in message.tool_calls)
            lines.append(f"{message.role}: {message.text}{calls}\n")
        return "".join(lines)

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The whole conversation, the answer included, in the form of OpenAI's Chat Completions."""
        return FrozenList([frozen(as_openai(message)) for message in self._record.messages(self._node)])

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools that the model was offered, in OpenAI's form."""
        return self._record.tools(self._node)

    @property
    def rewards(self) -> Mapping[str, float]:
        """The rewards that hold for this node, by name."""
        return self._record.rewards_of(self._node)

    @property
    def reward(self) -> float | None:
        """The reward named "reward", else the only one there is; None without one."""
        rewards = self.rewards
        if len(rewards) == 1:
            return next(iter(rewards.values()))
        return rewards.get("reward")

    @property
    def num_trainable(self) -> int:
        """How many tokens of the sequence are not masked."""
        return sum(len(node.output.ids) // 4 for node, shown in self._path if shown)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What is known of the node besides its sequence."""
        found: dict[str, Any] = {**_of_call(self._node), **_of_output(self._node)}
        found["num_trainable"] = self.num_trainable
        if self.label:
            found["lineage"] = self.label
        rewards = self.rewards
        if rewards:
            found["reward"], found["rewards"] = self.reward, rewards
        if self.incomplete:
            found["incomplete"] = self.incomplete
        return FrozenDict({name: frozen(value) for name, value in found.items()})


def _logprobs(node: Node) -> "array[float]":
    """Of the node's output: the engine's, or NaN where it gave none."""
    if node.output.logprobs is None:
        return array("d", [math.nan]) * (len(node.output.ids) // 4)
    return unpack_logprobs(node.output.logprobs)


def _span(node: Node, start: int, stop: int, *, trained: bool, said: bool) -> GeneratedSpan:
    return GeneratedSpan(
        node_id=node.id,
        start=start,
        stop=stop,
        trained=trained,
        versions=version_spans(node.output.weight_versions, start, stop),
        message=node.num_messages - 1 if said and node.output.message is not None else None,
        finish_reason=node.output.finish_reason,
        sampling=node.call.sampling,
        times=node.call.times,
        cached_tokens=node.call.usage.cached,
    )


def _of_call(node: Node) -> dict[str, Any]:
    call = node.call
    found: dict[str, Any] = {
        "node_id": node.id,
        "parent_id": call.parent_id,
        "call_id": call.call_id,
        "branch_reason": node.branch_reason,
        "delivery": node.delivery,
        "backend": call.backend,
        "model": node.model,
        "sampling": call.sampling,
        "created_at": call.times.ended,
        "dialect": call.dialect,
        "client": call.client,
        "request_id": call.request_id,
        "streamed": call.streamed,
        "times": {
            "received": call.times.received,
            "sent": call.times.sent,
            "first_token": call.times.first_token,
            "ended": call.times.ended,
        },
        "usage": {
            "prompt": call.usage.prompt,
            "cached": call.usage.cached,
            "generated": call.usage.generated,
        },
    }
    if call.asked_model and call.asked_model != node.model:
        found["asked_model"] = call.asked_model
    if call.reply_id:
        found["reply_id"] = call.reply_id
    if call.num_instructions:
        found["num_instructions"] = call.num_instructions
    if call.notes:
        found["notes"] = call.notes
    if len(call.outputs) > 1:
        found["choice"] = next(at for at, output in enumerate(call.outputs) if output.node_id == node.id)
    return found


def _of_output(node: Node) -> dict[str, Any]:
    output = node.output
    found: dict[str, Any] = {
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "trainable": node.trainable,
        "logprobs_mode": output.logprobs_mode,
        "weight_versions": output.weight_versions,
        "num_generated": len(output.ids) // 4,
    }
    if output.prompt_proof is not None:
        found["prompt_proof"] = output.prompt_proof
    if output.untrainable_reason is not None:
        found["untrainable_reason"] = output.untrainable_reason
    if output.error is not None:
        found["error"] = output.error
    if output.continued:
        found["continued"] = output.continued
    for name in ("routed_experts", "sampling_mask"):
        data: bytes | None = getattr(output, name)
        if data is not None:
            found[name] = base64.b64encode(data).decode()
    return found


def view(
    record: SessionRecord, node: Node, *, tree: bool, unmask: bool = False, decode: Decode | None = None
) -> RecordedNode:
    """One node. `tree`: one sequence a completion, so that only its own output is trainable.

    `unmask`: every generated token is shown, whoever owns it.
    """
    return RecordedNode(node, record, tree=tree, unmask=unmask, decode=decode)


def views(
    record: SessionRecord, *, tree: bool, unmask: bool = False, decode: Decode | None = None
) -> list[RecordedNode]:
    """The exported sequences of a session: one a leaf, or one a completion where `tree` is set."""
    nodes = record.forest if tree else record.forest.leaves()
    return [view(record, node, tree=tree, unmask=unmask, decode=decode) for node in nodes]
