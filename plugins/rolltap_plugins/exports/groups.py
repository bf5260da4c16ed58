"""Formats of trainers that take rollouts group by group: SkyRL and Atropos."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rolltap import BadRequest, ExportFormat, NodeView, SessionSummary
from rolltap_plugins.exports.record import advantage
from rolltap_plugins.exports.responses import Response


class SkyRL(ExportFormat):
    """An entry of SkyRL's `GeneratorOutput`, one a leaf; `collect` makes the output of them.

    A trajectory is a session: `repetition_id` is its place in its group within this export, and its last leaf is
    the last step.
    """

    name = "skyrl"

    def __init__(self) -> None:
        self._repetitions: Counter[str] = Counter()

    def rows(self, session: SessionSummary, nodes: Sequence[NodeView]) -> Iterator[dict[str, Any]]:
        """See `ExportFormat.rows`."""
        instance = session.group or session.uuid
        trajectory = {"instance_id": instance, "repetition_id": self._repetitions[instance]}
        self._repetitions[instance] += 1
        for number, node in enumerate(nodes, 1):
            response = Response.of(node)
            yield {
                "prompt_token_ids": response.prompt_ids,
                "response_ids": response.ids,
                "loss_masks": response.mask,
                "rewards": node.reward,
                "rollout_logprobs": response.logprobs,
                "stop_reasons": node.metadata.get("finish_reason"),
                "trajectory_ids": trajectory,
                "is_last_step": number == len(nodes),
            }

    def collect(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """See `ExportFormat.collect`. Raises `BadRequest` where a row has no reward."""
        batch = super().collect(rows)
        for given, trajectory in zip(batch["rewards"], batch["trajectory_ids"], strict=True):
            if given is None:
                raise BadRequest(f"a leaf of {trajectory['instance_id']!r} has no reward; {_GIVE_ONE}")
        return {**batch, "rollout_metrics": None}


class Atropos(ExportFormat):
    """A group as Atropos' `/scored_data` takes it, one a session: each key a list over the session's leaves.

    `collect` joins the groups of several sessions into one. `scores` has null where no reward was given, and Atropos
    refuses that.
    """

    name = "atropos"

    def rows(self, session: SessionSummary, nodes: Sequence[NodeView]) -> Iterator[dict[str, Any]]:  # noqa: ARG002
        """See `ExportFormat.rows`."""
        if not nodes:
            return
        packed = [node.packed for node in nodes]
        row = {
            "tokens": [sequence.tokens.tolist() for sequence in packed],
            "masks": [sequence.masked.tolist() for sequence in packed],
            "scores": [node.reward for node in nodes],
            "inference_logprobs": [sequence.logprobs_with(1.0) for sequence in packed],
        }
        conversations = [node.messages for node in nodes]
        if all(conversations):
            row["messages"] = [
                [{"content": None, **message} for message in said or ()] for said in conversations
            ]
        advantages = [advantage(node) for node in nodes]
        if None not in advantages:
            row["advantages"] = [
                sequence.mask(0.0, each) for sequence, each in zip(packed, advantages, strict=True)
            ]
        yield row

    def collect(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """See `ExportFormat.collect`. Raises `BadRequest` where a leaf has no reward."""
        groups = list(rows)
        shared = set(groups[0]).intersection(*groups) if groups else set()
        group = {key: [each for row in groups for each in row[key]] for key in sorted(shared)}
        if None in group.get("scores", ()):
            raise BadRequest(f"{group['scores'].count(None)} leaves of the group have no reward; {_GIVE_ONE}")
        return group


_GIVE_ONE = "POST /SESSION/reward before you collect"
