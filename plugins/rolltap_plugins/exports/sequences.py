"""Formats of trainers that take a sequence whole, with a mask over it: TRL's asynchronous GRPO, prime-rl, AReaL, tinker."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from rolltap import ExportFormat, NodeView, SessionSummary
from rolltap.record import GeneratedSpan
from rolltap_plugins.exports.record import advantage
from rolltap_plugins.exports.versions import whole_number

_DEFAULT_TEMPERATURE = 1.0
"""What engines sample with where nothing else was asked for."""


class TRLAsync(ExportFormat):
    """The fields of TRL's `TrainingSequence`; the rows of one session have one `rollout_id`."""

    name = "trl-async"

    def rows(self, session: SessionSummary, nodes: Sequence[NodeView]) -> Iterator[dict[str, Any]]:
        """See `ExportFormat.rows`."""
        for node in nodes:
            sequence = node.packed
            yield {
                "input_ids": sequence.tokens.tolist(),
                "completion_mask": sequence.mask(0, 1),
                "old_log_probs": sequence.logprobs_with(0.0),
                "rollout_id": session.uuid,
            }


class PrimeRL(ExportFormat):
    """The fields of prime-rl's `TrainingSample`. `env_name` is the session's label of that name, or its group."""

    name = "prime-rl"

    def rows(self, session: SessionSummary, nodes: Sequence[NodeView]) -> Iterator[dict[str, Any]]:
        """See `ExportFormat.rows`."""
        for node in nodes:
            sequence = node.packed
            row = {
                "token_ids": sequence.tokens.tolist(),
                "mask": sequence.mask(False, True),
                "logprobs": sequence.logprobs_with(0.0),
                "temperatures": sequence.spread(_DEFAULT_TEMPERATURE, _temperatures),
                "env_name": session.labels.get("env_name") or session.group or session.model_name,
            }
            if (given := advantage(node)) is not None:
                row["advantages"] = sequence.mask(0.0, given)
            if (given := node.reward) is not None:
                row["reward"] = given
            yield row


def _temperatures(span: GeneratedSpan) -> list[float]:
    asked = span.sampling.get("temperature")
    return [_DEFAULT_TEMPERATURE if asked is None else float(asked)] * len(span)


class AReaL(ExportFormat):
    """A trajectory as AReaL's workflows return it, as lists: each `[1, T]`, and `rewards` `[1]`."""

    name = "areal"

    def rows(self, session: SessionSummary, nodes: Sequence[NodeView]) -> Iterator[dict[str, Any]]:  # noqa: ARG002
        """See `ExportFormat.rows`."""
        read = partial(whole_number, format_name=self.name)
        for node in nodes:
            sequence = node.packed
            yield {
                "input_ids": [sequence.tokens.tolist()],
                "loss_mask": [sequence.mask(0, 1)],
                "logprobs": [sequence.logprobs_with(0.0)],
                "versions": [sequence.versions_with(-1, read)],
                "attention_mask": [[True] * len(sequence)],
                "rewards": [node.reward],
            }


class Tinker(ExportFormat):
    """A tinker `Datum`: what the model is given, and beside it, one token to the left, what it should have said.

    `advantages` is the reward named "advantage", or else the reward; without either the key is left out.
    """

    name = "tinker"

    def rows(self, session: SessionSummary, nodes: Sequence[NodeView]) -> Iterator[dict[str, Any]]:  # noqa: ARG002
        """See `ExportFormat.rows`."""
        for node in nodes:
            sequence = node.packed
            ids = sequence.tokens.tolist()
            inputs = {
                "target_tokens": _tensor("int64", ids[1:]),
                "logprobs": _tensor("float32", sequence.logprobs_with(0.0)[1:]),
                "mask": _tensor("float32", sequence.mask(0.0, 1.0)[1:]),
            }
            given = node.reward if advantage(node) is None else advantage(node)
            if given is not None:
                inputs["advantages"] = _tensor("float32", sequence.mask(0.0, given)[1:])
            chunk = {"type": "encoded_text", "tokens": ids[:-1]}
            yield {"model_input": {"chunks": [chunk]}, "loss_fn_inputs": inputs}


def _tensor(dtype: str, data: list[Any]) -> dict[str, Any]:
    return {"data": data, "dtype": dtype, "shape": [len(data)]}
