"""Validates a backend's delta before it is recorded: a log must stay readable, whatever a plugin does."""

from typing import get_args

import msgspec

from rolltap.errors import UpstreamError
from rolltap.types.generation import ChatDelta, FinishReason
from rolltap.wording import well_formed

_FINISH_REASONS = get_args(FinishReason)


def check_finish_reason(reason: str | None, index: int) -> None:
    """Raise `UpstreamError` for a word that no client and no stored log knows."""
    if reason is not None and reason not in _FINISH_REASONS:
        raise UpstreamError(
            f"the backend ended choice {index} with finish_reason {reason!r}; it must be one of "
            f"{', '.join(_FINISH_REASONS)}"
        )


def checked_delta(delta: ChatDelta, num_choices: int) -> ChatDelta:
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
