"""What a trainer gets of a session: whole sequences with masks and logprobs.

Each generated token is trainable in one exported sequence only. Where several leaves share an ancestor, the first
trainable one below it owns the ancestor's tokens; in the others they are masked.
"""

import base64
from array import array
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from rolltap.record.forest import Forest, Node
from rolltap.types.record import unpack_ids, unpack_logprobs
from rolltap.types.sequences import GeneratedSpan, PackedNode

MASKED = -100
MASKED_LOGPROB = 1.0
_NO_LOGPROB = array("d", [MASKED_LOGPROB])


class RecordedNode:
    """A node as hooks and exports see it (`rolltap.NodeView`); sequences are put together when asked for."""

    def __init__(
        self, node: Node, generated: Sequence[bool], decode: Callable[[list[int]], str] | None
    ) -> None:
        self._path = node.path()
        self._node = node
        self._generated = generated
        self._decode = decode

    @property
    def node_id(self) -> str:
        """Unique in its session."""
        return self._node.id

    @property
    def num_tokens(self) -> int:
        """How long the sequence is, without putting it together."""
        return sum((len(node.prompt.ids) + len(node.output.ids)) // 4 for node in self._path)

    @property
    def tokens(self) -> list[int]:
        """Prompt and completion ids of the whole sequence; empty for text-only backends."""
        return self._node.tokens()

    @property
    def masked_tokens(self) -> list[int]:
        """`tokens`, with -100 wherever this sequence must not be trained on."""
        masked: list[int] = []
        for node, shown in zip(self._path, self._generated, strict=True):
            masked += [MASKED] * (len(node.prompt.ids) // 4)
            own = unpack_ids(node.output.ids)
            masked += own if shown else [MASKED] * len(own)
        return masked

    @property
    def logprobs(self) -> list[float | None]:
        """The engine's logprobs where `masked_tokens` is not -100, 1.0 elsewhere; None where it gave none."""
        values: list[float | None] = []
        for node, shown in zip(self._path, self._generated, strict=True):
            values += [MASKED_LOGPROB] * (len(node.prompt.ids) // 4)
            size = len(node.output.ids) // 4
            if not shown:
                values += [MASKED_LOGPROB] * size
            elif node.output.logprobs is None:
                values += [None] * size
            else:
                values += unpack_logprobs(node.output.logprobs)
        return values

    @cached_property
    def packed(self) -> PackedNode:
        """The sequence as arrays, with what was generated as spans."""
        tokens, logprobs, spans = array("i"), array("d"), []
        for node, shown in zip(self._path, self._generated, strict=True):
            tokens.extend(unpack_ids(node.prompt.ids))
            start = len(tokens)
            tokens.extend(unpack_ids(node.output.ids))
            trained = shown and node.output.logprobs is not None
            logprobs.extend(_NO_LOGPROB * (start - len(logprobs)))
            own = node.output.logprobs if trained else None
            logprobs.extend(unpack_logprobs(own) if own is not None else _NO_LOGPROB * (len(tokens) - start))
            if len(tokens) > start:
                spans.append(_span(node, start, len(tokens), trained=trained))
        masked = array("i", [MASKED]) * len(tokens)
        for span in spans:
            if span.trained:
                masked[span.start : span.stop] = tokens[span.start : span.stop]
        return PackedNode(tokens=tokens, masked=masked, logprobs=logprobs, spans=tuple(spans))

    @property
    def messages(self) -> None:
        """TEMPORARY."""

    @property
    def tools(self) -> None:
        """TEMPORARY."""

    @property
    def full_text(self) -> str:
        """The decoded sequence; for text-only backends the conversation as text."""
        if self._decode is not None and self._node.has_tokens:
            return self._decode(self.tokens)
        return "".join((node.prompt.text or "") + (node.output.text or "") for node in self._path)

    @property
    def metadata(self) -> dict[str, Any]:
        """What is known of the node besides its sequence."""
        call, output = self._node.call, self._node.output
        metadata: dict[str, Any] = {
            "node_id": output.node_id,
            "parent_id": call.parent_id,
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
            "trainable": output.untrainable_reason is None,
            "branch_reason": call.branch_reason,
            "delivery": output.delivery,
            "backend": call.backend,
            "model": call.model,
            "sampling": call.sampling,
            "logprobs_mode": output.logprobs_mode,
            "weight_versions": output.weight_versions,
            "created_at": call.created_at,
            "num_generated": len(output.ids) // 4,
            "num_trainable": sum(
                len(node.output.ids) // 4
                for node, shown in zip(self._path, self._generated, strict=True)
                if shown
            ),
        }
        if output.untrainable_reason is not None:
            metadata["untrainable_reason"] = output.untrainable_reason
        for name in ("routed_experts", "sampling_mask"):
            data: bytes | None = getattr(output, name)
            if data is not None:
                metadata[name] = base64.b64encode(data).decode()
        if len(call.outputs) > 1:
            metadata["choice"] = call.outputs.index(output)
        return metadata

    def to_dict(self) -> dict[str, Any]:
        """The node as `GET /{sid}/nodes` gives it."""
        return {
            "full_text": self.full_text,
            "tokens": self.tokens,
            "masked_tokens": self.masked_tokens,
            "logprobs": self.logprobs,
            "metadata": self.metadata,
        }


def view(
    node: Node, *, tree: bool, unmask: bool = False, decode: Callable[[list[int]], str] | None = None
) -> RecordedNode:
    """One node with its mask. `tree`: one sequence a completion, so that only its own output is trainable.

    `unmask`: every generated token is shown, whoever owns it.
    """
    path = node.path()
    if unmask:
        return RecordedNode(node, [True] * len(path), decode)
    owned = [step is node or (not tree and _owner(step) is node) for step in path]
    return RecordedNode(node, [own and step.trainable for own, step in zip(owned, path, strict=True)], decode)


def views(
    forest: Forest, *, tree: bool, unmask: bool = False, decode: Callable[[list[int]], str] | None = None
) -> list[RecordedNode]:
    """The exported sequences of a session: one a leaf, or one a completion where `tree` is set."""
    return [
        view(node, tree=tree, unmask=unmask, decode=decode) for node in (forest if tree else forest.leaves())
    ]


def _span(node: Node, start: int, stop: int, *, trained: bool) -> GeneratedSpan:
    return GeneratedSpan(
        node_id=node.id,
        start=start,
        stop=stop,
        trained=trained,
        versions=tuple(
            (start + first, start + last, str(version))
            for first, last, version in filter(_is_placed, node.output.weight_versions or ())
            if first < last
        ),
        finish_reason=node.output.finish_reason,
        sampling=node.call.sampling,
        created_at=node.call.created_at,
    )


def _is_placed(version: Any) -> bool:
    """Whether a weight version says which tokens it generated: `[start, end, version]`."""
    return isinstance(version, list | tuple) and len(version) == 3


def _owner(node: Node) -> Node:
    """The leaf whose sequence trains this node's output."""
    while node.children:
        node = next((child for child in node.children if child.trainable), node.children[0])
    return node
