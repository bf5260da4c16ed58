"""The options of a backend's table: read into a struct, each mistake named with key, value and way out."""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from rolltap import ConfigError

Seconds = Annotated[float, Meta(gt=0)]

_Options = TypeVar("_Options", bound=Struct)


def read_options(table: Mapping[str, Any], shape: type[_Options], where: str) -> _Options:
    """The table as `shape`. Raises `ConfigError` that begins with `where`."""
    for key in table:
        if key not in shape.__struct_fields__:
            raise ConfigError(f"{where}: unknown option {key!r}{_hint(key, shape.__struct_fields__)}")
    try:
        return msgspec.convert(dict(table), shape)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        key = place.strip("`$.").partition("[")[0]
        raise ConfigError(f"{where}: option {key!r} is {table.get(key)!r}: {reason}") from error


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


def _hint(key: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(key, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known are: {', '.join(known)}"
