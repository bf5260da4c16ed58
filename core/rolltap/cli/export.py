"""`rolltap export`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click
from msgspec import Struct

from rolltap.cli.options import DEFAULT_URL
from rolltap.errors import ConfigError, RequestError, Unreachable

if TYPE_CHECKING:
    from rolltap.bases.exports import Export, ExportFile
    from rolltap.bases.stores import Store
    from rolltap.client import AsyncClient
    from rolltap.plugins import Plugins
    from rolltap.session import Session

_SUFFIXES = {".jsonl": "jsonl", ".parquet": "parquet"}
"""How files' names may end, and the format that each is written in where none is named."""


class Selection(Struct, frozen=True, kw_only=True):
    """What is exported, and how."""

    sessions: tuple[str, ...] = ()
    """Ids; none: all, or those of the group."""
    group: str = ""
    format: str = "jsonl"
    lineage: str = ""
    untrainable: str = "drop"
    sealed: bool = False


class Done(Struct, frozen=True):
    """A session whose rows are written."""

    rows: int
    left_out: Mapping[str, int]
    """Of all sessions so far: nodes, by the reason."""


class Source(Protocol):
    """Where the sessions are."""

    async def total(self) -> int:
        """How many sessions there are to be written."""

    async def open(self, path: Path) -> "ExportFile":
        """The file that they are written to."""

    def write_to(self, file: "ExportFile") -> AsyncIterator[Done]:
        """Write them, one after the other."""


@click.command()
@click.argument("sessions", nargs=-1, metavar="[SESSION]...")
@click.option("--group", default="", help="All sessions of this group.")
@click.option("--all", "everything", is_flag=True, help="All sessions.")
@click.option("--url", help=f"The server.  [default: {DEFAULT_URL}]")
@click.option(
    "--config", "config_file", metavar="FILE", help="Read the store of this config in place of a server."
)
@click.option("--api-key", envvar="ROLLTAP_API_KEY", help="The server's key, where it has some.")
@click.option(
    "--format", "format_name", metavar="NAME", help="jsonl, parquet, trl, verl, …  [default: by --to]"
)
@click.option("--lineage", default="", help="Only trees of this label, such as main.")
@click.option("--untrainable", type=click.Choice(["drop", "keep"]), default="drop", show_default=True)
@click.option("--sealed", is_flag=True, help="Only sessions that are sealed.")
@click.option("--to", "path", required=True, type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
def export(
    *,
    sessions: tuple[str, ...],
    group: str,
    everything: bool,
    url: str | None,
    config_file: str | None,
    api_key: str | None,
    format_name: str | None,
    lineage: str,
    untrainable: str,
    sealed: bool,
    path: Path,
) -> None:
    """Write recorded sessions to a .jsonl or a .parquet file, for a trainer.

    They are read from a running server, or, with --config, from its store.
    """
    if [bool(sessions), bool(group), everything].count(True) != 1:
        raise ConfigError(
            "say which sessions to export: their ids, or --group NAME, or --all; one of the three"
        )
    if url and config_file:
        raise ConfigError("--url and --config both say where the sessions are: give one of them")
    if path.suffix not in _SUFFIXES:
        raise ConfigError(f"--to {path}: the name must end in {' or '.join(_SUFFIXES)}")
    selection = Selection(
        sessions=sessions,
        group=group,
        format=format_name or _SUFFIXES[path.suffix],
        lineage=lineage,
        untrainable=untrainable,
        sealed=sealed,
    )
    try:
        if config_file:
            asyncio.run(_from_store(selection, path, config_file))
        else:
            asyncio.run(_from_server(selection, path, url or DEFAULT_URL, api_key))
    except (RequestError, Unreachable) as error:
        raise click.ClickException(str(error)) from error


async def _from_server(selection: Selection, path: Path, url: str, api_key: str | None) -> None:
    from rolltap.client import AsyncClient  # noqa: PLC0415

    async with AsyncClient(url, api_key) as client:
        await write(ServerSource(client, selection), path)


async def _from_store(selection: Selection, path: Path, config_file: str) -> None:
    from rolltap.cli.options import configured, naming  # noqa: PLC0415
    from rolltap.plugins import Plugins  # noqa: PLC0415
    from rolltap.server.app import create_store  # noqa: PLC0415

    with naming(config_file):
        config = configured(config_file, plugins_dir=None)
        plugins = Plugins.load(config.plugins)
        store = await create_store(config, plugins)
        if not store.durable:
            raise ConfigError(
                f"store.kind = {config.store.kind!r} keeps nothing when its server ends: export from the running "
                "server, with --url"
            )
        await store.start()
        try:
            await write(StoreSource(store, plugins, selection), path)
        finally:
            await store.close()


class ServerSource:
    """A running server."""

    def __init__(self, client: "AsyncClient", selection: Selection) -> None:
        self._client = client
        self._selection = selection

    async def total(self) -> int:
        """See `Source.total`."""
        asked = self._selection
        if asked.sessions:
            return len(asked.sessions)
        state = "sealed" if asked.sealed else ""
        return len([None async for _ in self._client.sessions(group=asked.group, state=state)])

    async def open(self, path: Path) -> "ExportFile":
        """See `Source.open`. Lines are written as they come; other files are made by the format's plugin, here."""
        from rolltap.bases.exports import JsonLinesFile  # noqa: PLC0415
        from rolltap.config import PluginsConfig  # noqa: PLC0415
        from rolltap.exporting import export_format  # noqa: PLC0415
        from rolltap.plugins import Plugins  # noqa: PLC0415

        if path.suffix == JsonLinesFile.suffix:
            return JsonLinesFile(path)
        found = await export_format(Plugins.load(PluginsConfig()), self._selection.format)
        return found.open(path)

    async def write_to(self, file: "ExportFile") -> AsyncIterator[Done]:
        """See `Source.write_to`."""
        from rolltap.exporting import progress_of  # noqa: PLC0415

        asked, lines = self._selection, []
        query = {
            "format": asked.format,
            "untrainable": asked.untrainable,
            "progress": "true",
            **({"group": asked.group} if asked.group else {}),
            **({"lineage": asked.lineage} if asked.lineage else {}),
            **({"sealed": "true"} if asked.sealed else {}),
        }
        async for line in self._client.export_lines(asked.sessions, **query):
            done = progress_of(line)
            if done is None:
                lines.append(line)
                continue
            yield Done(file.write_lines(lines), done.left_out)
            lines.clear()


class StoreSource:
    """A store that no server need be running on."""

    def __init__(self, store: "Store", plugins: "Plugins", selection: Selection) -> None:
        from rolltap.sessions import Sessions  # noqa: PLC0415

        self._sessions = Sessions(store, max_sessions=0, ttl_s=0)
        self._plugins = plugins
        self._selection = selection
        self._export: Export | None = None

    async def total(self) -> int:
        """See `Source.total`."""
        await self._sessions.restore()
        asked = self._selection
        if asked.sessions:
            return len(asked.sessions)
        if not asked.group and not asked.sealed:
            return len(self._sessions)
        state = "sealed" if asked.sealed else ""
        return len([None async for _ in self._sessions.page(group=asked.group, state=state)])

    async def open(self, path: Path) -> "ExportFile":
        """See `Source.open`."""
        from rolltap.bases.exports import Export, ExportOptions  # noqa: PLC0415
        from rolltap.exporting import export_format  # noqa: PLC0415

        asked = self._selection
        options = ExportOptions.of(untrainable=asked.untrainable, lineage=asked.lineage)
        self._export = Export(await export_format(self._plugins, asked.format), options)
        return self._export.format.open(path)

    async def write_to(self, file: "ExportFile") -> AsyncIterator[Done]:
        """See `Source.write_to`."""
        from rolltap.server.public import nodes_of  # noqa: PLC0415

        if self._export is None:
            raise TypeError("write_to is called with the file that open has given")
        async for session in self._each():
            nodes = self._export.pick(await nodes_of(session, self._plugins))
            yield Done(file.write(session.summary(), nodes), self._export.left_out)

    async def _each(self) -> "AsyncIterator[Session]":
        asked = self._selection
        for uuid in asked.sessions:
            session = await self._sessions.get(uuid)
            if not asked.sealed or session.record.sealed is not None:
                yield session
        if not asked.sessions:
            state = "sealed" if asked.sealed else ""
            async for session in self._sessions.each(group=asked.group, state=state):
                yield session


async def write(source: Source, path: Path) -> None:
    """Write a source's sessions to a file, and tell how it goes. Nothing is left of a file that fails."""
    total = await source.total()
    if not total:
        raise ConfigError("there is no such session: nothing is exported")
    unfinished = path.with_name(f".{path.stem}.part{path.suffix}")
    sessions, rows = 0, 0
    left_out: Mapping[str, int] = {}
    try:
        with await source.open(unfinished) as file, _progress(total) as advance:
            async for done in source.write_to(file):
                sessions, rows, left_out = sessions + 1, rows + done.rows, done.left_out
                advance(rows)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    click.echo(f"{path}: {rows} rows of {sessions} sessions{_left_out(left_out)}")


def _left_out(counts: Mapping[str, int]) -> str:
    words = {"untrainable": "with nothing to train on", "lineage": "of other lineage"}
    told = [f"{number} {words.get(reason, reason)}" for reason, number in counts.items()]
    return f"; left out: {', '.join(told)}" if told else ""


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar over sessions, on standard error, with the rows that are written."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("sessions, {task.fields[rows]} rows"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total, rows=0)
        yield lambda rows: bar.update(task, advance=1, rows=rows)
