"""A plugin's own options, read from its table in the config."""

from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from rolltap.errors import ConfigError
from rolltap.wording import suggestion

_Options = TypeVar("_Options", bound=msgspec.Struct)


def read_options(table: Mapping[str, Any], shape: type[_Options], where: str) -> _Options:
    """The table as `shape`, a msgspec Struct: its fields are the keys, with their types and defaults.

    :param where: what the message of an error begins with, such as "model 'qwen', backend of kind 'mine'".
    :raises ConfigError: that names an unknown key and the nearest known one; or the key, the value and what is allowed.
    """
    known = shape.__struct_fields__
    for key in table:
        if key not in known:
            hint = suggestion(key, known) or f"; known are: {', '.join(known) or 'none'}"
            raise ConfigError(f"{where}: unknown option {key!r}{hint}")
    try:
        return msgspec.convert(dict(table), shape)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_explained(error, table, shape)}") from error


def _explained(error: msgspec.ValidationError, table: Mapping[str, Any], shape: type[msgspec.Struct]) -> str:
    """The key, its value and what is allowed, from "Expected `float`, got `str` - at `$.timeout_s`" and the like."""
    reason, _, place = str(error).partition(" - at ")
    key = place.strip("`$.").partition("[")[0]
    if not key:
        return reason
    allowed = get_args(get_type_hints(shape)[key]) if reason.startswith("Invalid enum") else ()
    names = ", ".join(repr(name) for name in allowed if name)
    return f"option {key!r} is {table.get(key)!r}: {f'allowed are {names}' if names else reason}"
