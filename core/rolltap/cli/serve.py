"""`rolltap serve`."""

import click

from rolltap.cli.options import config_option, configured, plugins_dir_option
from rolltap.errors import ConfigError


@click.command()
@config_option
@click.option("--host", metavar="H", help="The address to listen on, in place of the config's.")
@click.option(
    "--port", metavar="N", type=click.IntRange(0, 65535), help="The port to listen on; 0: any free one."
)
@plugins_dir_option
@click.option(
    "--workers", metavar="N", type=click.IntRange(min=1), default=1, help="How many processes serve."
)
def serve(
    config_file: str | None, host: str | None, port: int | None, plugins_dir: str | None, workers: int
) -> None:
    """Serve the configured models until SIGTERM or SIGINT."""
    from rolltap.cli.runner import run  # noqa: PLC0415 - the server is not needed for --help

    if workers > 1:
        raise ConfigError(
            f"--workers = {workers} is not allowed; it must be 1: several processes need a store that they "
            "share, and this version has none"
        )
    config = configured(config_file, plugins_dir=plugins_dir, host=host, port=port)
    run(config, config_file=config_file)
