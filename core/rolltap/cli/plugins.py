"""`rolltap plugins`."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rolltap.cli.options import config_option, configured, plugins_dir_option

if TYPE_CHECKING:
    from rolltap.plugins import PluginRecord

_WIDTH_OF_A_FILE = 10_000
"""Columns that a table may have in a file or a pipe: as many as it needs, so that no cell is wrapped there."""


@click.command()
@config_option
@plugins_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of a table.")
def plugins(config_file: str | None, plugins_dir: str | None, as_json: bool) -> None:
    """Show every plugin: where it came from, the hooks it implements, what failed."""
    import msgspec  # noqa: PLC0415

    from rolltap.plugins import Plugins  # noqa: PLC0415

    config = configured(config_file, plugins_dir=plugins_dir)
    # What fails stands in the answer; it need not be logged too.
    logging.getLogger("rolltap.plugins").addHandler(logging.NullHandler())
    records = Plugins.load(config.plugins).records
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode({"plugins": records}), indent=2))
    else:
        _print_table(records)


def _print_table(records: "Sequence[PluginRecord]") -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH_OF_A_FILE
    table = Table("name", "version", "source", "hooks", "state")
    for record in records:
        cells = (record.name, record.version, record.source, ", ".join(record.hooks), record.state)
        table.add_row(*(Text(cell, overflow="fold") for cell in cells))
    console.print(table)
    for record in records:
        if record.error:
            # Plain text: a reason may hold brackets that rich would read as markup, and long lines stay whole.
            click.echo(f"{record.name} ({record.source}) is not loaded: {record.error}")
