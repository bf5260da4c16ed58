"""Formats of trainers that cut a sequence into a prompt and a response: TRL, verl and slime.

The prompt is what precedes the first trained token; the response is all the rest, masked inside.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from rolltap import ExportFormat, NodeView, SessionSummary
from rolltap_plugins.exports.versions import whole_numbers

_STATUS = {"length": "truncated", "abort": "aborted"}


class Response(Struct, frozen=True):
    """A sequence, cut in two."""

    prompt_ids: list[int]
    ids: list[int]
    mask: list[int]
    """1 on trained tokens, 0 elsewhere."""
    logprobs: list[float | None]
    """0.0 on context."""

    @classmethod
    def of(cls, node: NodeView) -> "Response":
        """The node's."""
        sequence = node.packed
        cut = sequence.response_start
        ids = sequence.tokens.tolist()
        mask, logprobs = sequence.mask(0, 1)[cut:], sequence.logprobs_with(0.0)[cut:]
        return cls(ids[:cut], ids[cut:], mask, logprobs)


class TRL(ExportFormat):
    """What a GRPOTrainer's `rollout_func` returns, one row a leaf; `collect` makes the dictionary of lists.

    `reward` and the keys after it go to the reward functions.
    """

    name = "trl"

    def rows(self, session: SessionSummary, nodes: Sequence[NodeView]) -> Iterator[dict[str, Any]]:
        """See `ExportFormat.rows`."""
        for node in nodes:
            response = Response.of(node)
            yield {
                "prompt_ids": response.prompt_ids,
                "completion_ids": response.ids,
                "logprobs": response.logprobs,
                "env_mask": response.mask,
                "reward": node.reward,
                "session": session.uuid,
                "group": session.group,
                "node_id": node.node_id,
            }


class Verl(ExportFormat):
    """The fields of verl's `AgentLoopOutput`."""

    name = "verl"

    def rows(self, session: SessionSummary, nodes: Sequence[NodeView]) -> Iterator[dict[str, Any]]:
        """See `ExportFormat.rows`."""
        for node in nodes:
            response = Response.of(node)
            steps = whole_numbers(node.packed.versions, self.name)
            extra: dict[str, Any] = {"session": session.uuid, "group": session.group, "node_id": node.node_id}
            if steps:
                extra |= {"min_global_steps": min(steps), "max_global_steps": max(steps)}
            yield {
                "prompt_ids": response.prompt_ids,
                "response_ids": response.ids,
                "response_mask": response.mask,
                "response_logprobs": response.logprobs,
                "reward_score": node.reward,
                "num_turns": len(node.messages or ()),
                "metrics": {},
                "extra_fields": extra,
            }


class Slime(ExportFormat):
    """What slime's `Sample.from_dict` reads."""

    name = "slime"

    def rows(self, session: SessionSummary, nodes: Sequence[NodeView]) -> Iterator[dict[str, Any]]:
        """See `ExportFormat.rows`."""
        for node in nodes:
            response = Response.of(node)
            yield {
                "tokens": response.prompt_ids + response.ids,
                "response_length": len(response.ids),
                "loss_mask": response.mask,
                "rollout_log_probs": response.logprobs,
                "reward": node.reward,
                "status": _STATUS.get(node.metadata.get("finish_reason") or "", "completed"),
                "weight_versions": [*map(str, node.packed.versions)],
                "session_id": session.uuid,
                "metadata": {"group": session.group, "node_id": node.node_id},
            }
