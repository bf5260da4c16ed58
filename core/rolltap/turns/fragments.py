"""Tool calls from a chat upstream, put in order: what comes in pieces, with gaps or without a name yet."""

from typing import Any

from rolltap.bases.parsers import CallFragment
from rolltap.errors import UpstreamError
from rolltap.turns.choices import new_call_id
from rolltap.types.chat import ToolCall
from rolltap.types.generation import ToolCallDelta


class _Call:
    def __init__(self, call_id: str | None) -> None:
        self.id = call_id
        self.index: int | None = None
        """Its number among the calls that the client has been told of; None until its name is known."""
        self.held = ""
        self.extra: dict[str, Any] | None = None
        self.empty = True
        """Whether no arguments have come yet."""


class CallFragments:
    """The calls of one choice. What it gives counts calls from 0 without gaps, each with id and name once, first.

    A call for which no arguments come has `{}`: clients parse what they get. An id that another call has already is
    replaced, for clients tell results apart by it, and some upstreams count from 0 in each reply. `used` are the ids of
    the conversation; those of the calls here are added.
    """

    def __init__(self, used: set[str] | None = None) -> None:
        self._used = set() if used is None else used
        self._open: dict[int, _Call] = {}
        self.told = 0
        """How many calls the client has been told of."""

    def take(self, call: ToolCall | ToolCallDelta) -> list[ToolCallDelta]:
        """The fragments to send for one that came."""
        if isinstance(call, CallFragment) and not call.name:
            return [ToolCallDelta(index=self.told - 1, arguments=call.arguments)]
        if isinstance(call, ToolCall):
            whole = _Call(call.id)
            return [self._begin(whole, call.name, call.arguments or "{}", dict(call.extra) or None)]
        before: list[ToolCallDelta] = []
        known = self._open.get(call.index)
        if known is None or _is_another(call, known):
            if known is not None:
                before = _completed(known)
            known = self._open[call.index] = _Call(call.id)
        known.id = known.id or call.id
        known.empty = known.empty and not call.arguments
        if known.index is not None:
            if not call.arguments and not call.extra:
                return []
            return [ToolCallDelta(index=known.index, arguments=call.arguments, extra=call.extra)]
        if not call.name:
            known.held += call.arguments
            known.extra = known.extra or call.extra
            return before
        return [
            *before,
            self._begin(known, call.name, known.held + call.arguments, call.extra or known.extra),
        ]

    def finish(self) -> list[ToolCallDelta]:
        """The choice is over: what its calls still lack. Raises `UpstreamError` for one whose name never came."""
        return [piece for call in self._open.values() for piece in _completed(call)]

    def _begin(
        self, call: _Call, name: str, arguments: str, extra: dict[str, Any] | None = None
    ) -> ToolCallDelta:
        call.index = self.told
        self.told += 1
        call_id = call.id if call.id and call.id not in self._used else new_call_id()
        self._used.add(call_id)
        return ToolCallDelta(index=call.index, id=call_id, name=name, arguments=arguments, extra=extra)


def _is_another(call: ToolCallDelta, known: _Call) -> bool:
    """Whether a fragment begins a new call though its index is taken: some upstreams number them all 0."""
    return bool(call.id and call.name and known.id and call.id != known.id)


def _completed(call: _Call) -> list[ToolCallDelta]:
    if call.index is None:
        raise UpstreamError("the backend sent a tool call without a name")
    return [ToolCallDelta(index=call.index, arguments="{}")] if call.empty else []
