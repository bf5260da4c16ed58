"""`rolltap new-plugin`: a project for plugins of one's own, copied from the template under another name."""

from pathlib import Path

import click

from rolltap.cli import template


@click.command("new-plugin")
@click.argument("name")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(list(template.KINDS)),
    help="What to begin with; may be given several times. Without it: one of each.",
)
@click.option("--to", metavar="DIR", help="The folder to make, in place of ./NAME.")
def new_plugin(name: str, kinds: tuple[str, ...], to: str | None) -> None:
    """Make a project for a plugin of your own: a package with code, tests, types and a CI file.

    NAME is the package's, such as "rolltap-mine".
    """
    folder = Path(to if to is not None else name)
    template.write(name, kinds or template.KINDS, folder)
    click.echo(f"{folder} is made. Next:\n\n    cd {folder}\n    pip install -e '.[dev]'\n    pytest")
