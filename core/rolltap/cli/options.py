"""The options that several commands have, and the config that they lead to."""

from typing import Any

import click
import msgspec

from rolltap.config import Config

config_option = click.option(
    "--config", "config_file", metavar="FILE", help="The config, a TOML file. Without it: the embedded model."
)
plugins_dir_option = click.option(
    "--plugins-dir",
    metavar="DIR",
    help="A folder of single-file plugins, in place of the config's [plugins] dir.",
)


def configured(
    config_file: str | None, *, plugins_dir: str | None, host: str | None = None, port: int | None = None
) -> Config:
    """The config, with what the command line says put over it. Raises `ConfigError`."""
    config = Config.load(config_file)
    return msgspec.structs.replace(
        config,
        server=msgspec.structs.replace(config.server, **_given(host=host, port=port)),
        plugins=msgspec.structs.replace(config.plugins, **_given(dir=plugins_dir)),
    )


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
