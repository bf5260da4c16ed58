"""What a chat backend answers a caller in its own process, who speaks a wire format without HTTP."""

from typing import Any

from msgspec import Struct, field


class BackendResponse(Struct):
    """A plain reply, or an error in the same dialect."""

    body: dict[str, Any]
    status_code: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    error: str | None = None
    """What went wrong, in plain words; None where nothing did."""


class StreamEvent(Struct):
    """One event of a streamed reply; `event_type` is the data's own `type`."""

    event_type: str
    data: dict[str, Any]
