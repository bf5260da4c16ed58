"""What stands in a URL's query."""

from collections.abc import Mapping, Sequence

from rolltap.errors import BadRequest


def one_of(query: Mapping[str, str], name: str, values: Sequence[str]) -> str:
    """A parameter's value, the first of `values` where it is not given. Raises `BadRequest`."""
    value = query.get(name, values[0])
    if value not in values:
        others = " or ".join(map(repr, values[1:]))
        raise BadRequest(f"{name}={value!r}: it is {values[0]!r} (the default) or {others}", param=name)
    return value


def whole_number(query: Mapping[str, str], name: str) -> int | None:
    """A parameter that counts something; None where it is not given. Raises `BadRequest`."""
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**31):
        raise BadRequest(f"{name}={text!r}: it is an integer of at least 1", param=name)
    return int(text)
