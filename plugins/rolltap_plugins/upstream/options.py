"""Options that backends with an upstream have: an address, a key, a time limit."""

import os
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from rolltap import ConfigError

Seconds = Annotated[float, Meta(gt=0)]


def check_url(name: str, url: str, where: str) -> None:
    """Raise `ConfigError` where `url`, the option `name`, is no address."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise ConfigError(
            f"{where}: {name!r} is {url!r}; expected an address such as 'http://127.0.0.1:8000'"
        )


def api_key(variable: str, where: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The key that the option `api_key_env` names; None where it names none. Raises `ConfigError` for one not set."""
    if not variable:
        return None
    if not environ.get(variable):
        raise ConfigError(
            f"{where}: 'api_key_env' names {variable!r}, which is not in the environment; set it, or leave the option "
            "out where the upstream needs no key"
        )
    return environ[variable]
