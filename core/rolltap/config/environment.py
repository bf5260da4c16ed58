"""Overrides from the environment: ROLLTAP_SERVER__PORT=9200 is `server.port = 9200`."""

import re
import tomllib
from collections.abc import Mapping
from typing import Any, get_args, get_origin

import msgspec

from rolltap.config.schema import Path, bare, dotted, type_at
from rolltap.errors import ConfigError

PREFIX = "ROLLTAP_"
_DIGITS = re.compile(r"(\d+)")


def apply(raw: dict[str, Any], environ: Mapping[str, str], root: type[msgspec.Struct]) -> dict[Path, str]:
    """Put the environment's values into `raw`. Returns which variable each path comes from.

    Raises `ConfigError` where a variable's path does not fit what is there.
    """
    origins: dict[Path, str] = {}
    for variable in sorted(filter(_is_override, environ), key=_natural):
        path = _path(variable, root)
        _put(raw, path, _value(environ[variable], type_at(root, path)), variable, origins)
    return origins


def origin(path: Path, origins: Mapping[Path, str]) -> str | None:
    """The variable that `path`, or the nearest table around it, comes from; None where that is the file."""
    for length in range(len(path), 0, -1):
        if path[:length] in origins:
            return origins[path[:length]]
    return None


def _is_override(variable: str) -> bool:
    return variable.startswith(PREFIX) and "__" in variable.removeprefix(PREFIX)


def _natural(variable: str) -> list[str | int]:
    """Sorts MODELS__2 before MODELS__10, so that a list grows from its end."""
    return [int(part) if part.isdigit() else part for part in _DIGITS.split(variable)]


def _path(variable: str, root: type[msgspec.Struct]) -> Path:
    path: Path = ()
    for word in variable.removeprefix(PREFIX).lower().split("__"):
        if get_origin(bare(type_at(root, path))) is list and path:
            if not word.isdigit():
                raise ConfigError(
                    f"environment variable {variable}: {dotted(path)} is a list, so a number must follow it, "
                    f"as in {PREFIX}{'__'.join(map(str, path)).upper()}__0, not {word.upper()!r}"
                )
            path = (*path, int(word))
        else:
            path = (*path, word)
    return path


def _value(text: str, kind: Any) -> Any:
    """The variable's text as a TOML value where it is one and the key is not a plain string; else the text."""
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        document = {}
    value = document["value"] if document.keys() == {"value"} else text
    if bare(kind) is str and not isinstance(value, str):
        return text
    if _is_list_of_strings(kind) and not isinstance(value, list):
        listed = value if isinstance(value, str) else text
        return [item.strip() for item in listed.split(",") if item.strip()]
    return value


def _is_list_of_strings(kind: Any) -> bool:
    return get_origin(bare(kind)) is list and bare(get_args(bare(kind))[0]) is str


def _put(raw: dict[str, Any], path: Path, value: Any, variable: str, origins: dict[Path, str]) -> None:
    table: Any = raw
    for depth, step in enumerate(path):
        _check_step(table, path, depth, variable)
        here = path[: depth + 1]
        if isinstance(table, list) and step == len(table):
            table.append(None)
            new = True
        else:
            new = isinstance(table, dict) and step not in table
        if depth == len(path) - 1:
            table[step] = value
            origins[here] = variable
        elif new:
            table[step] = [] if isinstance(path[depth + 1], int) else {}
            origins[here] = variable
        table = table[step]


def _check_step(table: Any, path: Path, depth: int, variable: str) -> None:
    step = path[depth]
    if isinstance(step, int) and isinstance(table, list):
        if step > len(table):
            raise ConfigError(
                f"environment variable {variable}: {dotted(path[: depth + 1])} would leave a gap; "
                f"the next one is {dotted((*path[:depth], len(table)))}"
            )
    elif not (isinstance(step, str) and isinstance(table, dict)):
        what = "a list" if isinstance(table, list) else "a table" if isinstance(table, dict) else "one value"
        raise ConfigError(
            f"environment variable {variable}: {dotted(path)} cannot be set, {dotted(path[:depth])} is {what}"
        )
