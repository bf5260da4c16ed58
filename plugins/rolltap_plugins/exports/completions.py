"""Formats with a row for each completion, not for each leaf: Agent Lightning and OpenEnv."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from rolltap import ExportFormat, NodeView, SessionSummary
from rolltap.record import GeneratedSpan, PackedNode


def exported_spans(sequence: PackedNode) -> list[GeneratedSpan]:
    """The completions that a leaf trains; where it trains none and is kept all the same, its own output."""
    return sequence.trained or list(sequence.spans[-1:])


class AgentLightning(ExportFormat):
    """Agent Lightning's `Triplet`. A leaf's reward stands on its last completion."""

    name = "agent-lightning"

    def rows(self, session: SessionSummary, nodes: Sequence[NodeView]) -> Iterator[dict[str, Any]]:
        """See `ExportFormat.rows`."""
        for node in nodes:
            sequence = node.packed
            spans = exported_spans(sequence)
            for span in spans:
                yield {
                    "prompt": {"token_ids": sequence.tokens[: span.start].tolist()},
                    "response": {
                        "token_ids": sequence.tokens[span.start : span.stop].tolist(),
                        "log_probs": sequence.logprobs[span.start : span.stop].tolist()
                        if span.trained
                        else None,
                    },
                    "reward": node.reward if span is spans[-1] else None,
                    "metadata": {
                        "session": session.uuid,
                        "group": session.group,
                        "node_id": span.node_id,
                        "leaf": node.node_id,
                        "finish_reason": span.finish_reason,
                    },
                }


class OpenEnv(ExportFormat):
    """OpenEnv's `TraceEntry`: a model call with its request, its reply and its tokens.

    Readers older than `prompt_token_ids` tokenize `request` anew, and then train on other ids than were recorded.
    """

    name = "openenv"

    def rows(self, session: SessionSummary, nodes: Sequence[NodeView]) -> Iterator[dict[str, Any]]:
        """See `ExportFormat.rows`."""
        turn = 0
        for node in nodes:
            sequence, messages = node.packed, node.messages or []
            for span in exported_spans(sequence):
                said = messages[span.message] if span.message is not None else {}
                size = len(span)
                yield {
                    "turn": turn,
                    "request": {"messages": list(messages[: span.message]), "tools": node.tools},
                    "response": {"choices": [{"message": said, "finish_reason": span.finish_reason}]},
                    "prompt_token_ids": sequence.tokens[: span.start].tolist(),
                    "completion_token_ids": sequence.tokens[span.start : span.stop].tolist(),
                    "per_token_logps": sequence.logprobs[span.start : span.stop].tolist()
                    if span.trained
                    else [],
                    "loss_mask": [0] * span.start + [int(span.trained)] * size,
                    "finish_reason": span.finish_reason,
                    "latency_s": span.times.ended - span.times.sent,
                    "timestamp": datetime.fromtimestamp(span.times.ended, UTC).isoformat(),
                    "metadata": {"node_id": span.node_id, "session": session.uuid, "group": session.group},
                }
                turn += 1
