"""The format "jsonl": all that is recorded of a node, for any trainer and for the shelf."""

from collections.abc import Iterator, Sequence
from typing import Any

from rolltap import ExportFormat, NodeView, SessionSummary

SCHEMA_VERSION = 1
"""Raised where a column changes its meaning or goes; a new column leaves it as it is."""

COLUMNS = {
    "schema_version": "int32",
    "session": "string",
    "group": "string",
    "node_id": "string",
    "lineage": "string",
    "label": "json",
    "tokens": "list<int32>",
    "mask": "list<bool>",
    "logprobs": "list<float64>",
    "versions": "list<string>",
    "reward": "float64",
    "rewards": "json",
    "advantage": "float64",
    "finish_reason": "string",
    "messages": "json",
    "tools": "json",
    "metadata": "json",
}
"""Each column and its type. In JSON lines "json" is the value itself, in Parquet its text."""


def advantage(node: NodeView) -> float | None:
    """The reward named "advantage"; None where there is none."""
    return node.rewards.get("advantage")


def facts(session: SessionSummary, node: NodeView) -> dict[str, Any]:
    """A row's columns without those that have a value for each token."""
    metadata = node.metadata
    return {
        "schema_version": SCHEMA_VERSION,
        "session": session.uuid,
        "group": session.group,
        "node_id": node.node_id,
        "lineage": metadata.get("lineage"),
        "label": session.labels,
        "reward": node.reward,
        "rewards": node.rewards,
        "advantage": advantage(node),
        "finish_reason": metadata.get("finish_reason"),
        "messages": node.messages,
        "tools": node.tools,
        "metadata": metadata,
    }


class JsonLines(ExportFormat):
    """One row a leaf; `logprobs` and `versions` are null on context, `mask` is true on trained tokens."""

    name = "jsonl"

    def rows(self, session: SessionSummary, nodes: Sequence[NodeView]) -> Iterator[dict[str, Any]]:
        """See `ExportFormat.rows`."""
        for node in nodes:
            sequence = node.packed
            row = facts(session, node)
            row["tokens"] = sequence.tokens.tolist()
            row["mask"] = sequence.mask(False, True)
            row["logprobs"] = sequence.logprobs_with(None)
            row["versions"] = sequence.versions_with(None, str)
            yield {name: row[name] for name in COLUMNS}
