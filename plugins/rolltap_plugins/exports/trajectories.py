"""The format "atif": Harbor's trajectories, version 1.7 of the format."""

import json
import mimetypes
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rolltap import ExportFormat, NodeView, SessionSummary, __version__
from rolltap.record import GeneratedSpan, PackedNode

SCHEMA_VERSION = "ATIF-v1.7"
_SOURCES = {"user": "user", "assistant": "agent"}
_IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")


class ATIF(ExportFormat):
    """One trajectory a leaf. The leaves of sub-agents stand inside the main leaf's, where there is one.

    A step has its tokens and logprobs where this trajectory trains it; one that another trajectory of the session
    trains is marked `is_copied_context`.
    """

    name = "atif"

    def rows(self, session: SessionSummary, nodes: Sequence[NodeView]) -> Iterator[dict[str, Any]]:
        """See `ExportFormat.rows`."""
        trained = {span.node_id for node in nodes for span in node.packed.trained}
        main = next((node for node in nodes if node.metadata.get("lineage") == "main"), None)
        inside = [node for node in nodes if main and node.metadata.get("lineage") == "sub-agent"]
        for node in nodes:
            if node in inside:
                continue
            row = _trajectory(session, node, trained)
            if node is main and inside:
                row["subagent_trajectories"] = [_trajectory(session, each, trained) for each in inside]
            yield row


def _trajectory(session: SessionSummary, node: NodeView, trained: set[str]) -> dict[str, Any]:
    sequence, metadata = node.packed, node.metadata
    steps = _Steps(sequence, trained)
    if node.messages:
        for number, message in enumerate(node.messages):
            steps.add(message, next((span for span in sequence.spans if span.message == number), None))
    else:
        # A raw sequence is no conversation: its text stands once, and its completions are steps without text.
        steps.add({"role": "user", "content": node.full_text}, None)
        for span in sequence.spans:
            steps.add({"role": "assistant"}, span)
    agent = {
        "name": str(session.labels.get("agent") or "rolltap"),
        "version": str(session.labels.get("agent_version") or __version__),
        "model_name": metadata.get("model") or session.model_name,
    }
    if node.tools:
        agent["tool_definitions"] = list(node.tools)
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": session.uuid,
        "trajectory_id": node.node_id,
        "agent": agent,
        "steps": steps.done,
        "final_metrics": {
            "total_prompt_tokens": sum(span.start for span in sequence.spans),
            "total_completion_tokens": sum(len(span) for span in sequence.spans),
            "total_cached_tokens": sum(span.cached_tokens or 0 for span in sequence.spans),
            "total_steps": len(steps.done),
        },
        "extra": {
            "group": session.group,
            "lineage": metadata.get("lineage"),
            "reward": node.reward,
            "rewards": node.rewards,
        },
    }


class _Steps:
    """A conversation's messages as steps."""

    def __init__(self, sequence: PackedNode, trained: set[str]) -> None:
        self.done: list[dict[str, Any]] = []
        self._sequence = sequence
        self._trained = trained

    def add(self, message: Mapping[str, Any], span: GeneratedSpan | None) -> None:
        """Add the step of a message; a tool's answer belongs to the step that called it."""
        if message["role"] == "tool":
            self._observe(message)
            return
        source = _SOURCES.get(message["role"], "system")
        step: dict[str, Any] = {
            "step_id": len(self.done) + 1,
            "source": source,
            "message": _content(message.get("content")),
        }
        if source == "agent":
            if reasoning := message.get("reasoning_content") or message.get("reasoning"):
                step["reasoning_content"] = reasoning
            if calls := message.get("tool_calls"):
                step["tool_calls"] = [_call(call) for call in calls]
        if span is not None:
            step["timestamp"] = datetime.fromtimestamp(span.times.ended, UTC).isoformat()
            step["llm_call_count"] = 1
            step["metrics"] = self._metrics(span)
            if not span.trained and span.node_id in self._trained:
                step["is_copied_context"] = True
        self.done.append(step)

    def _observe(self, message: Mapping[str, Any]) -> None:
        call_id = message.get("tool_call_id")
        result: dict[str, Any] = {"content": _content(message.get("content"))}
        for step in reversed(self.done):
            if any(call["tool_call_id"] == call_id for call in step.get("tool_calls", ())):
                result["source_call_id"] = call_id
                step.setdefault("observation", {"results": []})["results"].append(result)
                return
        self.done.append(
            {
                "step_id": len(self.done) + 1,
                "source": "system",
                "message": "",
                "observation": {"results": [result]},
            }
        )

    def _metrics(self, span: GeneratedSpan) -> dict[str, Any]:
        metrics: dict[str, Any] = {"prompt_tokens": span.start, "completion_tokens": len(span)}
        if span.cached_tokens is not None:
            metrics["cached_tokens"] = span.cached_tokens
        if span.trained:
            metrics["prompt_token_ids"] = self._sequence.tokens[: span.start].tolist()
            metrics["completion_token_ids"] = self._sequence.tokens[span.start : span.stop].tolist()
            metrics["logprobs"] = self._sequence.logprobs[span.start : span.stop].tolist()
        return metrics


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    found = {"tool_call_id": call.get("id") or "", "function_name": function["name"]}
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        return {**found, "arguments": arguments}
    # What is no object has no place in the format but this one.
    return {**found, "arguments": {}, "extra": {"arguments": function["arguments"]}}


def _content(content: Any) -> str | list[dict[str, Any]]:
    """A message's content: text, or parts where there are images."""
    if content is None or isinstance(content, str):
        return content or ""
    if all(part.get("type") == "text" for part in content):
        return "".join(part["text"] for part in content)
    return [_part(part) for part in content]


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part.get("type") == "text":
        return {"type": "text", "text": part["text"]}
    url = part["image_url"]["url"]
    said = url[5:].split(";")[0].split(",")[0] if url.startswith("data:") else mimetypes.guess_type(url)[0]
    media_type = said if said in _IMAGE_TYPES else "image/png"
    return {"type": "image", "source": {"media_type": media_type, "path": url}}
