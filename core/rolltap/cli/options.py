"""The options that several commands have, and the config that they lead to."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from rolltap.config import Config
from rolltap.errors import ConfigError

DEFAULT_URL = "http://127.0.0.1:9100"
"""Where commands look for a running server."""

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
    if plugins_dir is not None and not Path(plugins_dir).is_dir():
        raise ConfigError(
            f'--plugins-dir = "{plugins_dir}" is not a folder; it must be one that holds .py files'
        )
    return msgspec.structs.replace(
        config,
        server=msgspec.structs.replace(config.server, **_given(host=host, port=port)),
        plugins=msgspec.structs.replace(config.plugins, **_given(dir=plugins_dir)),
    )


@contextmanager
def naming(config_file: str | None) -> Iterator[None]:
    """Name the file in a `ConfigError` that is found only when what it asks for is made, and so does not know it."""
    try:
        yield
    except ConfigError as error:
        if config_file is None or config_file in str(error):
            raise
        raise ConfigError(f"{config_file}: {error}") from error


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
