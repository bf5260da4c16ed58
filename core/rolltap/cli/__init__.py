"""The command line. What a command needs is imported when it runs, so that each starts as quickly as it can."""

from typing import Any

import click

from rolltap import ConfigError, PluginError, __version__
from rolltap.cli.check import check
from rolltap.cli.export import export
from rolltap.cli.new_plugin import new_plugin
from rolltap.cli.plugins import plugins
from rolltap.cli.serve import serve


class _Mistake(click.ClickException):
    """A user's mistake: one message, no traceback."""

    exit_code = 2


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a wrong config or a plugin that breaks the rules is a message and exit code 2."""
        try:
            return super().invoke(ctx)
        except (ConfigError, PluginError) as error:
            raise _Mistake(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Stand between any LLM agent and any model, and record every rollout as exact tokens."""


@main.command()
def version() -> None:
    """Print rolltap's version."""
    click.echo(f"rolltap {__version__}")


main.add_command(check)
main.add_command(export)
main.add_command(new_plugin)
main.add_command(plugins)
main.add_command(serve)
