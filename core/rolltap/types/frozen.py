"""JSON values that can't be changed: what plugins are handed, and what the record keeps."""

from collections.abc import Iterable
from typing import Any, NoReturn

from msgspec import Struct
from msgspec.structs import force_setattr

from rolltap.errors import BadRequest


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    kind = "dict" if isinstance(self, dict) else "list"
    raise TypeError(
        f"this {kind} is shared and can't be changed; work on a copy: rolltap.thawed(value), or {kind}(value)"
    )


class FrozenDict(dict[str, Any]):
    """A dict that refuses to be changed. It equals a plain dict, and JSON libraries write it as one."""

    __slots__ = ()
    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __copy__(self) -> dict[str, Any]:
        """A plain copy."""
        return dict(self)

    def __deepcopy__(self, _: object) -> dict[str, Any]:
        """A plain copy, all the way down."""
        return {key: thawed(value) for key, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as what it is made of."""
        return (FrozenDict, (dict(self),))


class FrozenList(list[Any]):
    """A list that refuses to be changed. It equals a plain list, and JSON libraries write it as one."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = clear = extend = insert = pop = remove = (
        reverse
    ) = sort = _refuse

    def __copy__(self) -> list[Any]:
        """A plain copy."""
        return list(self)

    def __deepcopy__(self, _: object) -> list[Any]:
        """A plain copy, all the way down."""
        return [thawed(value) for value in self]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as what it is made of."""
        return (FrozenList, (list(self),))


EMPTY = FrozenDict()
"""The empty dict, of which there need be only one."""


def frozen(value: Any) -> Any:
    """A JSON value as one that can't be changed, all the way down. What is frozen already is given back as it is.

    Raises `BadRequest` for a value that is nested deeper than Python's stack.
    """
    try:
        return _frozen(value)
    except RecursionError:
        raise BadRequest("a value is nested too deep to be read (RecursionError)") from None


def _frozen(value: Any) -> Any:
    kind = type(value)
    if kind is FrozenDict or kind is FrozenList:
        return value
    if isinstance(value, dict):
        return FrozenDict({key: _frozen(item) for key, item in value.items()}) if value else EMPTY
    if isinstance(value, list | tuple):
        return FrozenList([_frozen(item) for item in value])
    return value


def thawed(value: Any) -> Any:
    """A plain copy of a JSON value, all the way down."""
    if isinstance(value, dict):
        return {key: thawed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [thawed(item) for item in value]
    return value


def freeze_fields(struct: Struct, *, tuples: Iterable[str] = (), values: Iterable[str] = ()) -> None:
    """In `__post_init__`: make lists given for `tuples` tuples, and freeze the JSON given for `values`."""
    for name in tuples:
        value = getattr(struct, name)
        if type(value) is not tuple and value is not None and not isinstance(value, str):
            force_setattr(struct, name, tuple(value))
    for name in values:
        value = getattr(struct, name)
        if type(value) is not FrozenDict and value is not None:
            force_setattr(struct, name, frozen(value))
