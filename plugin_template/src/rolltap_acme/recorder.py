"""Writes each recorded node, as a line of JSON, to the file that the environment's ACME_RECORDS names."""

import asyncio
import json
import os
from pathlib import Path

from rolltap import NodeView, SessionInfo, hookimpl


@hookimpl
async def record_node(session: SessionInfo, node: NodeView) -> None:
    """Told of each node once it is stored, before the client has its last byte. A failure here is logged, no more."""
    file = os.environ.get("ACME_RECORDS")
    if file:
        line = {"session": session.uuid, "tokens": node.tokens, "logprobs": node.logprobs, **node.metadata}
        await asyncio.to_thread(
            _append, Path(file), json.dumps(line)
        )  # disks are slow, and the loop is shared


def _append(file: Path, line: str) -> None:
    with file.open("a", encoding="utf-8") as records:
        records.write(line + "\n")
