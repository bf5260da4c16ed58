"""What export formats subclass: recorded nodes in, one trainer's rows out."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, ClassVar, Literal, Self, get_args

import orjson
from msgspec import Struct

from rolltap.errors import BadRequest, ConfigError
from rolltap.types.ledger import SessionSummary
from rolltap.types.nodes import NodeView

Untrainable = Literal["drop", "keep"]


class ExportOptions(Struct, frozen=True, kw_only=True):
    """Which nodes are exported."""

    untrainable: Untrainable = "drop"
    """What becomes of nodes without a token to train on: text-only ones, and those whose record is not exact."""
    lineage: str = ""
    """Only the trees of this label, such as "main"; "": all."""

    @classmethod
    def of(cls, *, untrainable: str = "drop", lineage: str = "") -> "ExportOptions":
        """Options as a query or a command line gives them. Raises `BadRequest`."""
        for allowed in get_args(Untrainable):
            if untrainable == allowed:
                return cls(untrainable=allowed, lineage=lineage)
        raise BadRequest(
            f"untrainable={untrainable!r}: it is 'drop' (the default) or 'keep'", param="untrainable"
        )


class ExportFile(ABC):
    """A file that rows are written to. `with` closes it; on an error it is closed as it is."""

    @abstractmethod
    def write(self, session: SessionSummary, nodes: Sequence[NodeView]) -> int:
        """Write a session's rows; return how many."""

    @abstractmethod
    def write_rows(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Write rows that a server has made; return how many."""

    def write_lines(self, lines: Iterable[bytes]) -> int:
        """The same, as lines of JSON."""
        return self.write_rows(map(orjson.loads, lines))

    @abstractmethod
    def close(self) -> None:
        """Write what is left, and close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class JsonLinesFile(ExportFile):
    """Rows as JSON, one a line."""

    suffix: ClassVar[str] = ".jsonl"

    def __init__(self, path: Path, format_: "ExportFormat | None" = None) -> None:
        """`format_` makes the rows of `write`; a file that is given rows does without."""
        self._file: BinaryIO = path.open("wb")
        self._format = format_

    def write(self, session: SessionSummary, nodes: Sequence[NodeView]) -> int:
        """See `ExportFile.write`."""
        if self._format is None:
            raise TypeError("this file was opened without a format: give it rows, or open it with one")
        return self.write_rows(self._format.rows(session, nodes))

    def write_rows(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """See `ExportFile.write_rows`."""
        return self._write(map(json_line, rows))

    def write_lines(self, lines: Iterable[bytes]) -> int:
        """See `ExportFile.write_lines`."""
        return self._write(line + b"\n" for line in lines)

    def _write(self, lines: Iterable[bytes]) -> int:
        count = 0
        for count, line in enumerate(lines, 1):  # noqa: B007 - how many there were is the answer
            self._file.write(line)
        return count

    def close(self) -> None:
        """See `ExportFile.close`."""
        self._file.close()


class ExportFormat(ABC):
    """One trainer's shape of rollouts. Rows are JSON values; ids, masks and logprobs are the record's own.

    `NodeView.packed` has what rows are made of. An instance belongs to one export, so it may count.
    """

    name: ClassVar[str]
    suffix: ClassVar[str] = JsonLinesFile.suffix
    """How the name of a file in this format ends."""

    @abstractmethod
    def rows(self, session: SessionSummary, nodes: Sequence[NodeView]) -> Iterator[dict[str, Any]]:
        """The rows of a session's nodes, in their order. What is left out has been left out of `nodes`."""

    def collect(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Rows as one batch, where the trainer wants columns: each key with a list over the rows."""
        batch: dict[str, Any] = {}
        for number, row in enumerate(rows):
            for key, value in row.items():
                column = batch.setdefault(key, [None] * number)
                column.append(value)
            for column in batch.values():
                if len(column) <= number:
                    column.append(None)
        return batch

    def open(self, path: Path) -> ExportFile:
        """A new file in this format. Raises `ConfigError` where the name has another ending."""
        if path.suffix != self.suffix:
            raise ConfigError(
                f"--to {path}: the format {self.name!r} is written to a file whose name ends in {self.suffix}"
            )
        return JsonLinesFile(path, self)


class Export:
    """One export under way: it picks the nodes, makes the rows and counts what was left out."""

    def __init__(self, format_: ExportFormat, options: ExportOptions) -> None:
        self.format = format_
        self.options = options
        self.left_out: Counter[str] = Counter()
        """How many nodes were left out: of another `lineage`, or `untrainable`."""

    def pick(self, nodes: Iterable[NodeView]) -> list[NodeView]:
        """The nodes to export; the others are counted."""
        picked = []
        for node in nodes:
            reason = self._why_not(node)
            if reason:
                self.left_out[reason] += 1
            else:
                picked.append(node)
        return picked

    def rows(self, session: SessionSummary, nodes: Iterable[NodeView]) -> Iterator[dict[str, Any]]:
        """The rows of those of a session's nodes that are to be exported."""
        yield from self.format.rows(session, self.pick(nodes))

    def summary(self) -> dict[str, Any]:
        """What was left out, as HTTP tells it."""
        return {"left_out": dict(self.left_out)}

    def _why_not(self, node: NodeView) -> str:
        if self.options.lineage and node.metadata.get("lineage") != self.options.lineage:
            return "lineage"
        return "" if self.options.untrainable == "keep" or node.packed.num_trained else "untrainable"


def json_line(row: Mapping[str, Any]) -> bytes:
    """A row as a line of JSON."""
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)
