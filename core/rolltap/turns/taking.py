"""What a plugin's backend gave, made fit to be kept: the record must be readable, whatever a plugin does."""

from typing import get_args

import msgspec

from rolltap.errors import UpstreamError
from rolltap.types.generation import ChatDelta, FinishReason

_FINISH_REASONS = get_args(FinishReason)


def check_finish_reason(reason: str | None, index: int) -> None:
    """Raise `UpstreamError` for a word that no client and no stored log knows."""
    if reason is not None and reason not in _FINISH_REASONS:
        raise UpstreamError(
            f"the backend ended choice {index} with finish_reason {reason!r}; it must be one of "
            f"{', '.join(_FINISH_REASONS)}"
        )


def taken(delta: ChatDelta, num_choices: int) -> ChatDelta:
    """A copy of a chat backend's delta, for the plugin may yield one object many times; its texts made whole.

    Raises `UpstreamError` for a choice that nobody asked for, or an unknown `finish_reason`.
    """
    if not 0 <= delta.index < num_choices:
        raise UpstreamError(f"the backend answered with choice {delta.index} of {num_choices}")
    check_finish_reason(delta.finish_reason, delta.index)
    return msgspec.structs.replace(
        delta,
        text=well_formed(delta.text),
        reasoning=well_formed(delta.reasoning),
        tool_calls=[
            msgspec.structs.replace(
                call,
                name=well_formed(call.name) if call.name else call.name,
                arguments=well_formed(call.arguments),
            )
            for call in delta.tool_calls
        ],
    )


def well_formed(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair, which no UTF-8 and so no answer can hold.

    Python's `json` reads such halves where an upstream wrote `\\ud83d` without its other half.
    """
    if not text or text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
