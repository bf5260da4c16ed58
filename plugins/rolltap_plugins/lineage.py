"""What each tree of a session is: the agent's main conversation, a sub-agent, a title, a conversation begun anew after compaction.

An agent asks for more than its own conversation: it lets sub-agents work, has titles made, and begins anew with a summary
once its context is full. Trainers often want some of these trees only. A tree is told by how it began.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from rolltap import Message, ToolCall, TreeView, hookimpl

_COMPACTED = (
    "continued from a previous conversation",
    "summary of the conversation so far",
    "context checkpoint",
)
"""What agents say at the start of a conversation that goes on from a summary."""

_TITLES = (
    "title",
    "summarize this coding conversation",
    "isnewtopic",
    "topic of the conversation",
    "session name",
)
"""What agents ask for where they want a conversation named."""

_SHORTEST_TASK = 12
"""Characters of a text that may be recognised in a call's arguments; a shorter one stands in many by chance."""


@hookimpl(trylast=True)
def label_tree(tree: TreeView) -> str:
    """Always an answer: "main", "sub-agent", "title", "compaction" or "other"."""
    asked = _said(tree.messages, "user")
    if _asked_for_by(asked, tree.calls_before):
        return "sub-agent"
    if any(words in text.lower() for text in asked[:2] for words in _COMPACTED):
        return "compaction"
    instructions = " ".join(_said(tree.messages, "system", "developer")).lower()
    if not tree.tools and any(words in instructions for words in _TITLES):
        return "title"
    if tree.first or tree.tools:
        return "main" if tree.first or not _is_small(tree) else "other"
    return "other"


def _said(messages: Sequence[Message], *roles: str) -> list[str]:
    return [message.text for message in messages if message.role in roles]


def _is_small(tree: TreeView) -> bool:
    """Whether it asks for next to nothing: a probe, a quota check."""
    return tree.max_tokens is not None and tree.max_tokens <= 32


def _asked_for_by(asked: Sequence[str], calls: Sequence[ToolCall]) -> bool:
    """Whether one of the session's tool calls says what this tree was asked: its task stands in the arguments."""
    tasks = [text.strip() for text in asked if len(text.strip()) >= _SHORTEST_TASK]
    for call in calls:
        words = _strings(call.arguments)
        if any(word and (word in task or task in word) for task in tasks for word in words):
            return True
    return False


def _strings(arguments: str) -> list[str]:
    """The longer texts in a call's arguments."""
    try:
        value: Any = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return []
    found, left = [], [value]
    while left:
        item = left.pop()
        if isinstance(item, str) and len(item.strip()) >= _SHORTEST_TASK:
            found.append(item.strip())
        elif isinstance(item, dict):
            left += item.values()
        elif isinstance(item, list):
            left += item
    return found
