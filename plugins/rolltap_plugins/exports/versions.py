"""Weight versions for trainers that count them."""

from collections.abc import Iterable

from rolltap import BadRequest


def whole_number(version: int | str, format_name: str) -> int:
    """A weight version as the number of a step. Raises `BadRequest` where it is none."""
    try:
        return int(version)
    except ValueError as error:
        raise BadRequest(
            f"the weight version {version!r} is not a whole number, and the format {format_name!r} counts versions: "
            "give the engine versions such as '12', or export as 'jsonl'",
            param="format",
        ) from error


def whole_numbers(versions: Iterable[int | str], format_name: str) -> list[int]:
    """The same for several."""
    return [whole_number(version, format_name) for version in versions]
