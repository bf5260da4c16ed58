"""A session's forest as the viewer draws it: one row a completion, in the order of the calls."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from rolltap import NodeView
from rolltap_plugins.viewer.segments import text_of

MOST_REMEMBERED = 20_000
SHOWN = 160
"""Characters of an answer that a row shows."""

_FIELDS = (
    "parent_id",
    "call_id",
    "choice",
    "branch_reason",
    "finish_reason",
    "trainable",
    "untrainable_reason",
    "delivery",
    "error",
    "continued",
    "lineage",
    "model",
    "backend",
    "num_generated",
    "num_trainable",
    "reward",
    "times",
    "usage",
    "notes",
)


class Forests:
    """Makes the rows. What a node said never changes, and is read once: it takes the whole conversation each time."""

    def __init__(self) -> None:
        self._said: OrderedDict[tuple[str, str], dict[str, Any]] = OrderedDict()

    def rows(self, session: str, nodes: Sequence[NodeView]) -> list[dict[str, Any]]:
        """A row for each node."""
        return [self._row(session, node) for node in nodes]

    def _row(self, session: str, node: NodeView) -> dict[str, Any]:
        metadata = node.metadata
        row = {name: metadata[name] for name in _FIELDS if metadata.get(name) is not None}
        return {"id": node.node_id, "num_tokens": node.num_tokens, **row, **self._said_by(session, node)}

    def _said_by(self, session: str, node: NodeView) -> dict[str, Any]:
        key = (session, node.node_id)
        if key not in self._said:
            self._said[key] = said_in(node.messages)
            if len(self._said) > MOST_REMEMBERED:
                self._said.popitem(last=False)
        return self._said[key]


def said_in(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The beginning of the answer, the names of its calls, and how many messages led to it."""
    if not messages:
        return {"said": "", "calls": [], "messages": 0}
    answer = messages[-1]
    return {
        "said": " ".join(text_of(answer)[: 4 * SHOWN].split())[:SHOWN],
        "calls": [call["function"]["name"] for call in answer.get("tool_calls", ())],
        "thinks": bool(answer.get("reasoning_content")),
        "messages": len(messages) - 1,
    }
