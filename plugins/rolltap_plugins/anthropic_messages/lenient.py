"""Bodies from callers in this process: what a model can't be given is left out, where an HTTP client is told of it."""

import logging
from typing import Any

log = logging.getLogger(__name__)

_READABLE = {
    "user": frozenset({"text", "image", "tool_result", "document", "search_result"}),
    "assistant": frozenset({"text", "thinking", "redacted_thinking", "tool_use"}),
}
"""The kinds of blocks that a message of each role may have."""


def readable(body: dict[str, Any]) -> dict[str, Any]:
    """The body without the messages and blocks that can't be read; a message whose blocks all go has empty text."""
    messages = []
    for at, message in enumerate(body.get("messages") or ()):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            kept = [block for block in content if _is_readable(block, message.get("role"))]
            if len(kept) < len(content):
                log.info("messages[%d]: %d blocks are left out", at, len(content) - len(kept))
            messages.append({**message, "content": kept or ""})
        elif isinstance(content, str):
            messages.append(message)
        else:
            log.info("messages[%d] is left out: its content is a %s", at, type(content).__name__)
    return {**body, "messages": messages}


def _is_readable(block: Any, role: Any) -> bool:
    kind = block.get("type", "text") if isinstance(block, dict) else None
    if kind == "tool_use" and not block.get("name"):
        return False
    return kind in _READABLE.get(role, {"text"})
