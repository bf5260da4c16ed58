"""The format "parquet": the columns of "jsonl", in a file that is read by column."""

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolltap import ConfigError, ExportFile, NodeView, SessionSummary, json_line
from rolltap.record import PackedNode
from rolltap_plugins.exports.record import COLUMNS, SCHEMA_VERSION, JsonLines, facts

if TYPE_CHECKING:
    import pyarrow as pa

_PER_TOKEN = ("tokens", "mask", "logprobs", "versions")

ROW_GROUP_TOKENS = 1 << 20
"""Tokens that are gathered before they are written: memory stays flat however many sessions there are."""


class Parquet(JsonLines):
    """The rows of "jsonl"; written to a .parquet file they are columns of packed values."""

    name = "parquet"
    suffix = ".parquet"

    def open(self, path: Path) -> ExportFile:
        """See `ExportFormat.open`. JSON lines are written where the name ends in .jsonl."""
        if path.suffix != self.suffix:
            return JsonLines().open(path)
        if find_spec("pyarrow") is None:
            raise ConfigError(
                "Parquet needs pyarrow: pip install 'rolltap[parquet]', or export to a .jsonl file"
            )
        return ParquetFile(path)


class ParquetFile(ExportFile):
    """Rows in groups of about `ROW_GROUP_TOKENS` tokens."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self._schema = schema()
        self._writer = pq.ParquetWriter(
            path,
            self._schema,
            compression="zstd",
            compression_level=1,
            # A dictionary pays for values that come again, which ids and logprobs hardly do.
            use_dictionary=["versions.list.element"],
            use_byte_stream_split=["logprobs.list.element"],
        )
        self._facts: list[dict[str, Any]] = []
        self._sequences: list[PackedNode] = []
        self._rows: list[dict[str, Any]] = []
        self._tokens = 0

    def write(self, session: SessionSummary, nodes: Sequence[NodeView]) -> int:
        """See `ExportFile.write`."""
        for node in nodes:
            sequence = node.packed
            self._facts.append(_as_text(facts(session, node)))
            self._sequences.append(sequence)
            self._count(len(sequence))
        return len(nodes)

    def write_rows(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """See `ExportFile.write_rows`."""
        count = 0
        for count, row in enumerate(rows, 1):  # noqa: B007 - how many there were is the answer
            self._rows.append(_as_text(row))
            self._count(len(row["tokens"]))
        return count

    def close(self) -> None:
        """See `ExportFile.close`."""
        self._flush()
        self._writer.close()

    def _count(self, tokens: int) -> None:
        self._tokens += tokens
        if self._tokens >= ROW_GROUP_TOKENS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._sequences:
            plain = pa.schema([field for field in self._schema if field.name not in _PER_TOKEN])
            batch = pa.RecordBatch.from_pylist(self._facts, schema=plain)
            columns = {
                **dict(zip(plain.names, batch.columns, strict=True)),
                **_token_columns(self._sequences),
            }
            self._writer.write_batch(pa.RecordBatch.from_pydict(columns, schema=self._schema))
        if self._rows:
            self._writer.write_batch(pa.RecordBatch.from_pylist(self._rows, schema=self._schema))
        self._facts, self._sequences, self._rows, self._tokens = [], [], [], 0


def schema() -> "pa.Schema":
    """The file's schema, made of `COLUMNS`; the version stands in its metadata too."""
    import pyarrow as pa

    plain = {
        "int32": pa.int32(),
        "bool": pa.bool_(),
        "float64": pa.float64(),
        "string": pa.string(),
        "json": pa.string(),
    }
    fields = [
        (name, pa.list_(plain[kind[5:-1]]) if kind.startswith("list<") else plain[kind])
        for name, kind in COLUMNS.items()
    ]
    return pa.schema(fields, metadata={"rolltap_schema_version": str(SCHEMA_VERSION)})


def _as_text(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its "json" columns as text."""
    return {
        name: json_line(row[name]).decode().rstrip()
        if COLUMNS[name] == "json" and row[name] is not None
        else row[name]
        for name in COLUMNS
        if name in row
    }


def _token_columns(sequences: Sequence[PackedNode]) -> dict[str, "pa.Array"]:
    """The columns with a value for each token, made of the packed arrays as they are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    starts = [0, *accumulate(map(len, sequences))]
    total = starts[-1]
    offsets = pa.array(starts, pa.int32())
    trained = bytearray(total)
    for start, sequence in zip(starts, sequences, strict=False):
        for span in sequence.trained:
            trained[start + span.start : start + span.stop] = b"\1" * len(span)
    mask = _flat(pa.uint8(), total, trained).cast(pa.bool_())
    ids = _flat(pa.int32(), total, b"".join(sequence.tokens for sequence in sequences))
    logprobs = _flat(pa.float64(), total, b"".join(sequence.logprobs for sequence in sequences))
    values = {
        "tokens": ids,
        "mask": mask,
        "logprobs": pc.if_else(mask, logprobs, pa.scalar(None, pa.float64())),
        "versions": _versions(starts, sequences),
    }
    return {name: pa.ListArray.from_arrays(offsets, flat) for name, flat in values.items()}


def _flat(kind: "pa.DataType", length: int, data: bytes | bytearray) -> "pa.Array":
    import pyarrow as pa

    return pa.Array.from_buffers(kind, length, [None, pa.py_buffer(data)])


def _versions(starts: Sequence[int], sequences: Sequence[PackedNode]) -> "pa.Array":
    """A weight version for each token, null where there is none: runs, written out by pyarrow."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ends: list[int] = []
    versions: list[str | None] = []

    def add(end: int, version: str | None) -> None:
        if end > (ends[-1] if ends else 0):
            ends.append(end)
            versions.append(version)

    for offset, sequence in zip(starts, sequences, strict=False):
        for span in sequence.trained:
            for start, stop, version in span.versions:
                add(offset + start, None)
                add(offset + stop, str(version))
    add(starts[-1], None)
    runs = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), pa.array(versions, pa.string()))
    return pc.run_end_decode(runs)
