"""Exports of many sessions: what `GET /sessions/export` streams, and what `rolltap export` reads."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Sequence

import msgspec
from msgspec import Struct

from rolltap.bases.exports import Export, ExportFormat, json_line
from rolltap.errors import BadRequest
from rolltap.plugins import Plugins
from rolltap.types.ledger import SessionSummary
from rolltap.types.nodes import NodeView

OFF_LOOP_TOKENS = 20_000
"""More tokens than this are decoded, encoded or made into rows in a thread."""


class SessionExported(Struct, frozen=True, tag="exported", tag_field="rolltap"):
    """A line between the rows, where a reader has asked for progress: all rows of a session have come."""

    session: str
    rows: int
    left_out: dict[str, int]
    """Of all sessions up to this one: how many nodes were left out, by the reason."""


_PROGRESS = b'{"rolltap":"exported",'
"""What such a line begins with, and no row does."""

_decoder = msgspec.json.Decoder(SessionExported)


def progress_of(line: bytes) -> SessionExported | None:
    """What a line says about the progress; None where it is a row."""
    return _decoder.decode(line) if line.startswith(_PROGRESS) else None


async def export_format(plugins: Plugins, name: str) -> ExportFormat:
    """A new format of that name, from a plugin. Raises `BadRequest` where no plugin has it."""
    found: ExportFormat | None = await plugins.call_first("export_format", name=name)
    if found is None:
        raise BadRequest(
            f"no plugin offers the export format {name!r}{plugins.hint('export_format', name)}",
            param="format",
        )
    return found


async def export_lines(
    export: Export,
    sessions: AsyncIterable[tuple[SessionSummary, Sequence[NodeView]]],
    *,
    progress: bool = False,
) -> AsyncIterator[bytes]:
    """Lines of JSON, a session's at a time: memory is that of one session."""
    async for session, nodes in sessions:
        # Picked here, not in the thread: which leaf trains what must not change from one node to the next.
        picked = export.pick(nodes)
        if sum(node.num_tokens for node in picked) > OFF_LOOP_TOKENS:
            lines = await asyncio.to_thread(_lines, export, session, picked)
        else:
            lines = _lines(export, session, picked)
        if progress:
            done = SessionExported(session=session.uuid, rows=len(lines), left_out=dict(export.left_out))
            lines.append(msgspec.json.encode(done) + b"\n")
        yield b"".join(lines)


def _lines(export: Export, session: SessionSummary, nodes: Sequence[NodeView]) -> list[bytes]:
    return [json_line(row) for row in export.format.rows(session, nodes)]
