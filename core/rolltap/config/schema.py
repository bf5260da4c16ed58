"""Paths into the config, and what its types say is allowed there: what the messages are made of."""

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from rolltap.wording import nearest

Path = tuple[str | int, ...]
"""The way to a value from the root: ("models", 0, "name") is `models[0].name`."""

_STEP = re.compile(r"\[(\d+)]|\.?([^.\[\]]+)")
_LONGEST_SHOWN = 100
_PLAIN = {str: "a string", bool: "true or false", int: "an integer", float: "a number"}


def dotted(path: Path) -> str:
    """The path as people write it."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def parsed(text: str) -> Path:
    """The path in a msgspec message: `.models[0].name`, what follows its `$`."""
    return tuple(
        int(index) if index else key for index, key in (match.groups() for match in _STEP.finditer(text))
    )


def bare(kind: Any) -> Any:
    """A type without its `Annotated`."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def is_table(kind: Any) -> bool:
    """Whether the type is one of the config's structs."""
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def type_at(root: type[msgspec.Struct], path: Path) -> Any:
    """The type, `Annotated` and all, of what stands at `path`; None for a plugin's option or an unknown key."""
    kind: Any = root
    for step in path:
        kind = bare(kind)
        if isinstance(step, int):
            kind = get_args(kind)[0] if get_origin(kind) is list else None
        else:
            kind = _fields(kind).get(step)
    return kind


def value_at(raw: Any, path: Path) -> Any:
    """The value at `path`. Raises `LookupError` where there is none."""
    for step in path:
        raw = raw[step]
    return raw


def allowed(kind: Any) -> str:
    """What a value of this type may be, in words."""
    if get_origin(kind) is Annotated:
        described = [meta.description for meta in get_args(kind)[1:] if isinstance(meta, msgspec.Meta)]
        return next(filter(None, described), None) or allowed(bare(kind))
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(json.dumps(value) for value in get_args(kind))
    if get_origin(kind) is list:
        item = bare(get_args(kind)[0])
        return "a list of tables" if is_table(item) else "a list of strings"
    return "a table" if is_table(kind) else _PLAIN[kind]


def shown(path: Path, value: Any) -> str:
    """The value for a message: JSON, cut where it is long, and nothing of a secret."""
    if any(isinstance(step, str) and step.startswith("api_key") for step in path):
        return "(not shown)"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def keys(kind: Any) -> list[str]:
    """The keys of a table, in order; [] where the type is no table."""
    return list(_fields(bare(kind)))


def nearest_key(root: type[msgspec.Struct], path: Path) -> str:
    """The known key that is most like the unknown one at `path`: of its own table, or the same word in another."""
    wanted = str(path[-1])
    siblings = keys(type_at(root, path[:-1]))
    if nearest(wanted, siblings) is None:
        elsewhere = [known for known in _all_keys(root, ()) if known[-1] == wanted]
        if elsewhere:
            return dotted(elsewhere[0])
    return dotted((*path[:-1], nearest(wanted, siblings, cutoff=0.0) or siblings[0]))


def _fields(kind: Any) -> dict[str, Any]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(kind)} if is_table(kind) else {}


def _all_keys(kind: Any, prefix: Path) -> Iterator[Path]:
    for name, inner in _fields(bare(kind)).items():
        path = (*prefix, name)
        yield path
        if get_origin(bare(inner)) is list:
            yield from _all_keys(get_args(bare(inner))[0], (*path, 0))
        else:
            yield from _all_keys(inner, path)
