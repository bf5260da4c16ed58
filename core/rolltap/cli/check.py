"""`rolltap check`: everything that serving needs, tried once, without serving."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import click

from rolltap.bases.converters import MessageConverter
from rolltap.bases.stores import Store
from rolltap.cli.check_model import Line, model_lines, reason
from rolltap.cli.options import config_option, configured, naming, plugins_dir_option
from rolltap.errors import ErrorInfo

if TYPE_CHECKING:
    from rolltap.config import Config
    from rolltap.plugins import Plugins


@click.command()
@config_option
@plugins_dir_option
def check(config_file: str | None, plugins_dir: str | None) -> None:
    """Check config, plugins, tokenizers, templates and backends, without serving.

    Goes the way of a request once, and says which plugin each hook's choice falls on. Prints a line for each: ok, a
    note, or a problem. Ends with exit code 1 where there is a problem.
    """
    from rolltap.plugins import Plugins  # noqa: PLC0415

    config = configured(config_file, plugins_dir=plugins_dir)
    # What fails is a line of the answer; it need not be logged too.
    logging.getLogger("rolltap.plugins").addHandler(logging.NullHandler())
    with naming(config_file):
        plugins = Plugins.load(config.plugins)
    if not asyncio.run(_report(config, plugins)):
        sys.exit(1)


async def _report(config: "Config", plugins: "Plugins") -> bool:
    """Print each line as it comes; whether all is well."""
    click.echo("ok       config")
    well = True
    async for line in look(config, plugins):
        click.echo(f"{line.word:8} {line.subject}: {line.text}")
        well = well and line.word != "problem"
    return well


async def look(config: "Config", plugins: "Plugins") -> AsyncIterator[Line]:
    """Look at one thing after the other."""
    for record in plugins.records:
        if record.error:
            yield Line(
                "problem", f"plugin {record.name} ({record.source})", f"{record.error}; {record.way_out}"
            )
    loaded = [record.name for record in plugins.records if record.state == "loaded"]
    yield Line("ok" if loaded else "problem", "plugins", f"{len(loaded)} loaded: {', '.join(loaded)}")
    yield await _store(config, plugins)
    async for line in _converters(plugins):
        yield line
    for model in config.models:
        async for line in model_lines(model, plugins):
            yield line
    yield _recorders(plugins)
    yield await _errors(plugins)


async def _store(config: "Config", plugins: "Plugins") -> Line:
    kind = config.store.kind
    subject = f"store {kind}"
    try:
        found = await plugins.ask("create_store", kind=kind, options=dict(config.store.options))
        if found is None:
            return Line(
                "problem",
                subject,
                f"no plugin creates stores of this kind{plugins.hint('create_store', kind)}",
            )
        store: Store = found.value
        await store.start()
        await store.close()
    except Exception as error:  # noqa: BLE001 - whatever a plugin raises is what was to be found
        return Line("problem", subject, reason(error))
    return Line("ok", subject, f"can be opened, by {found.plugin}")


async def _converters(plugins: "Plugins") -> AsyncIterator[Line]:
    """Who reads and writes each wire format that some plugin says it offers."""
    for dialect in plugins.offered("message_converter"):
        try:
            found = await plugins.ask("message_converter", dialect=dialect)
        except Exception as error:  # noqa: BLE001 - as above
            yield Line("problem", f"dialect {dialect}", reason(error))
            continue
        if found is None:
            yield Line("problem", f"dialect {dialect}", "is offered, and nobody answers for it")
            continue
        converter: MessageConverter = found.value
        yield Line("ok", f"dialect {dialect}", f"{type(converter).__name__}, by {found.plugin}")


def _recorders(plugins: "Plugins") -> Line:
    """Who would be told of a node; none is made up for them."""
    told = plugins.order("record_node")
    return Line("ok", "record_node", f"is told to {', '.join(told)}" if told else "no plugin is to be told")


async def _errors(plugins: "Plugins") -> Line:
    try:
        found = await plugins.ask(
            "classify_error", error=TimeoutError("tried by rolltap check"), backend=None
        )
    except Exception as error:  # noqa: BLE001 - as above
        return Line("problem", "classify_error", reason(error))
    if found is None:
        return Line("note", "classify_error", "nobody knows what a timeout is: it would be a plain 500")
    info: ErrorInfo = found.value
    return Line("ok", "classify_error", f"a timeout is a {info.status}, by {found.plugin}")
