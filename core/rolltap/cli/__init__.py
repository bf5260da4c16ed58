"""The command line. What a command needs is imported when it runs, so that each starts as quickly as it can."""

from typing import Any

import click

from rolltap import ConfigError, PluginError, RolltapError, __version__
from rolltap.cli.check import check
from rolltap.cli.export import export
from rolltap.cli.new_plugin import new_plugin
from rolltap.cli.plugins import plugins
from rolltap.cli.serve import serve
from rolltap.cli.show import show
from rolltap.cli.tail import tail


class _Mistake(click.ClickException):
    """A user's mistake: one message, no traceback."""

    exit_code = 2


class _Commands(click.Group):
    """rolltap's own commands; those of plugins are looked for once a name is none of them, or all are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        self._add_plugins_commands()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in self.commands:
            self._add_plugins_commands()
        return super().get_command(ctx, cmd_name)

    def _add_plugins_commands(self) -> None:
        """Let installed plugins add commands. One that fails is said, and harms no other command."""
        if self._asked_plugins:
            return
        self._asked_plugins = True
        from rolltap.config import PluginsConfig  # noqa: PLC0415
        from rolltap.plugins import Plugins  # noqa: PLC0415

        own = dict(self.commands)
        try:
            Plugins.load(PluginsConfig()).call_all_sync("register_commands", cli=self)
        except RolltapError as error:
            click.echo(f"commands of plugins are missing: {error}", err=True)
        self.commands.update(own)  # none takes the place of rolltap's own

    _asked_plugins = False

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
main.add_command(show)
main.add_command(tail)
