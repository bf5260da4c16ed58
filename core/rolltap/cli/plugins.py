"""`rolltap plugins`."""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from rolltap.cli.options import config_option, configured, naming, plugins_dir_option

if TYPE_CHECKING:
    from rolltap.plugins import PluginRecord, Plugins

_WIDTH_OF_A_FILE = 10_000
"""Columns that a table may have in a file or a pipe: as many as it needs, so that no cell is wrapped there."""

_SHOWN_NAMES = 8


class Clash(Struct):
    """Names that several plugins offer: the one that is asked first answers, and hides the others."""

    hook: str
    names: list[str]
    answers: str
    hidden: list[str]


class Report(Struct):
    """What the command tells, as `--json` prints it."""

    plugins: "list[PluginRecord]"
    order: dict[str, list[str]]
    """For each hook the plugins that implement it, the one that is asked first first."""
    clashes: list[Clash]


@click.command()
@config_option
@plugins_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of a table.")
def plugins(config_file: str | None, plugins_dir: str | None, as_json: bool) -> None:
    """Show every plugin: where it came from, its hooks and their order, what it offers, what failed.

    A hook's "2/5" says that the plugin is the second of five to be asked.
    """
    import msgspec  # noqa: PLC0415

    from rolltap.plugins import Plugins  # noqa: PLC0415

    config = configured(config_file, plugins_dir=plugins_dir)
    # What fails stands in the answer; it need not be logged too.
    logging.getLogger("rolltap.plugins").addHandler(logging.NullHandler())
    with naming(config_file):
        report = _report(Plugins.load(config.plugins))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2))
        return
    _print_table(report)
    _print_clashes(report.clashes)
    _print_failures(report.plugins)


def _report(plugins: "Plugins") -> Report:
    from rolltap.plugins import HOOKS, NAMED_HOOKS  # noqa: PLC0415

    order = {hook: plugins.order(hook) for hook in sorted(HOOKS)}
    clashes: dict[tuple[str, ...], Clash] = {}
    for hook in sorted(NAMED_HOOKS):
        for name, (answers, *hidden) in plugins.offered(hook).items():
            if hidden:
                clash = clashes.setdefault((hook, answers, *hidden), Clash(hook, [], answers, hidden))
                clash.names.append(name)
    return Report(plugins.records, order, list(clashes.values()))


def _print_table(report: Report) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH_OF_A_FILE
    table = Table("name", "version", "source", "hooks", "offers", "state")
    for record in report.plugins:
        # What `offers` says has a column of its own, and all are asked for it.
        asked = [hook for hook in record.hooks if hook != "offers"]
        hooks = ", ".join(f"{hook} {_place(report.order[hook], record.name)}" for hook in asked)
        offers = ", ".join(_some(name for names in record.offers.values() for name in names))
        cells = (record.name, record.version, record.source, hooks, offers, record.state)
        table.add_row(*(Text(cell, overflow="fold") for cell in cells))
    console.print(table)


def _place(order: list[str], plugin: str) -> str:
    return f"{order.index(plugin) + 1}/{len(order)}"


def _some(names: Iterable[str]) -> list[str]:
    found = list(dict.fromkeys(names))
    more = len(found) - _SHOWN_NAMES
    return [*found[:_SHOWN_NAMES], f"and {more} more"] if more > 1 else found


# Plain text: a reason may hold brackets that rich would read as markup, and long lines stay whole.


def _print_clashes(clashes: list[Clash]) -> None:
    for clash in clashes:
        click.echo(
            f"{clash.hook} {', '.join(clash.names)}: {clash.answers} is asked first and hides {', '.join(clash.hidden)}; "
            f'[plugins] disable = ["{clash.answers}"] uncovers it'
        )


def _print_failures(records: "list[PluginRecord]") -> None:
    for record in records:
        if record.error:
            click.echo(f"{record.name} ({record.source}) is not loaded: {record.error}")
            click.echo(f"    the way out: {record.way_out}")
