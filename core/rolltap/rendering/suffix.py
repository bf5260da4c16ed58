"""Rendering what follows a recorded sequence, without rendering the sequence again."""

from collections.abc import Sequence
from typing import Any

import msgspec

from rolltap.errors import BadRequest
from rolltap.rendering.boundary import BoundaryFinder, Seam, TurnBoundary, after_mark, find_boundary
from rolltap.rendering.codec import Codec
from rolltap.rendering.forms import PROBE_TOOLS
from rolltap.rendering.messages import MessageForm, as_dict, name_calls, place_systems
from rolltap.rendering.standin import STAND_INS, StandIn
from rolltap.rendering.template import ChatTemplate
from rolltap.types.chat import ChatRequest, Message, ToolCall

_OTHER_TOOLS = [{"type": "function", "function": {"name": "other", "description": "-", "parameters": {}}}]
_CALLS = (
    ToolCall(name="probe", id="call00001", arguments='{"query": "x"}'),
    ToolCall(name="probe", id="call00002", arguments='{"query": "y"}'),
)
_KINDS = {
    "s": Message(role="system", content="Be brief."),
    "u": Message(role="user", content="Hello"),
    "a": Message(role="assistant", content="Hello yourself."),
    "c": Message(role="assistant", tool_calls=_CALLS[:1]),
    "t": Message(role="tool", content="Found.", tool_call_id=_CALLS[0].id, name="probe"),
    "C": Message(role="assistant", tool_calls=_CALLS),
    "T": Message(role="tool", content="Found too.", tool_call_id=_CALLS[1].id, name="probe"),
}
_HISTORIES = (
    ("uaua", "u"),
    ("suaua", "u"),
    ("ucta", "u"),
    ("uctauaua", "u"),
    ("sucta", "uc"),
    ("uctc", "t"),
    ("uctauc", "t"),
    ("uCtTauC", "tT"),
    ("uaucta", "ucta"),
    ("suctctuctcta", "uct"),
)
"""Conversations, as recorded and new messages, that tell whether a template remembers more than it should."""


class SuffixRenderer:
    """Renders new messages behind a stand-in for the old ones.

    The last assistant message of the stand-in ends in a mark; what the template shows after the mark is what
    follows the recorded sequence, but for the end of the turn, which the sequence may have itself.
    """

    def __init__(
        self, template: ChatTemplate, form: MessageForm, codec: Codec, boundary: TurnBoundary
    ) -> None:
        self._template = template
        self._form = form
        # A template that takes system messages at the beginning alone takes none in what follows.
        later = "nowhere" if form.systems == "first" else form.systems
        self._later_form = msgspec.structs.replace(form, systems=later)
        self._codec = codec
        self._boundary = boundary
        self._finder = BoundaryFinder(template, form, codec)
        self._seams: dict[tuple[bool, str, bool], Seam | None] = {}
        self.stand_in: StandIn = next(one for one in STAND_INS if self._is_enough(one))
        self._needs_tools = not self._is_enough(self.stand_in, _OTHER_TOOLS)

    def text(self, request: ChatRequest, kept: int, last_id: int) -> str:
        """The text that follows a sequence which covers `messages[:kept]` and ends in `last_id`."""
        messages = name_calls(request.messages, self._form)
        old = place_systems(messages[:kept], self._form)
        new = place_systems(messages[kept:], self._later_form)
        # Long tools take a while to render, and hardly any template shows them again.
        tools = request.tools if self._needs_tools or not request.tools else PROBE_TOOLS
        tail = self._tail(self.stand_in(old, self._form), new, tools, request.template_kwargs)
        if tail is None:
            raise BadRequest(
                "the model's chat template does not show the last assistant message of this conversation, so it "
                'cannot be continued from its record: set history = "template" for this model',
                param="messages",
            )
        calls = bool(old[-1].tool_calls) and self._form.shows_calls
        return self._without_end(tail, self._seam(calls, new, tools=bool(tools)), last_id)

    def _tail(
        self,
        old: Sequence[dict[str, Any]],
        new: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        variables: dict[str, Any],
    ) -> str | None:
        messages = [*old, *(as_dict(message, self._form) for message in new)]
        return after_mark(self._template.render(messages, tools=tools, variables=variables))

    def _seam(self, calls: bool, new: Sequence[Message], *, tools: bool) -> Seam | None:
        key = (calls, new[0].role if new else "", tools)
        if key not in self._seams:
            self._seams[key] = self._finder.seam(self._boundary, calls=calls, next_role=key[1], tools=tools)
        return self._seams[key]

    def _without_end(self, tail: str, seam: Seam | None, last_id: int) -> str:
        """Drop what the recorded sequence has: the turn's end where it ends in one, and markup before it."""
        if seam is not None and tail.startswith(seam.between[: seam.end]):
            start, end = seam.start, seam.end
        else:
            # The template looks at the messages' text. The first end of a turn in it is the one that is meant,
            # unless the template has none here and a message spells one.
            start, end = find_boundary(tail, self._boundary, self._codec) or (0, 0)
        token = self._codec.id_of(tail[start:end])
        if token is None:
            return tail[start:]
        ended = last_id == token or (last_id in self._boundary.ids and token in self._boundary.closers)
        return tail[end:] if ended else tail[start:]

    def _is_enough(self, stand_in: StandIn, other_tools: Sequence[dict[str, Any]] | None = None) -> bool:
        """Whether suffixes come out as behind a whole conversation, also with other tools where those are given."""
        whole = STAND_INS[-1]
        return all(
            self._probe(stand_in, kept, new, tools if other_tools is None or not tools else other_tools)
            == self._probe(whole, kept, new, tools)
            for kept, new in _HISTORIES
            for tools in (PROBE_TOOLS, [])
            if self._probe(whole, kept, new, tools) is not None
        )

    def _probe(self, stand_in: StandIn, kept: str, new: str, tools: Sequence[dict[str, Any]]) -> str | None:
        old = [_KINDS[kind] for kind in kept]
        try:
            return self._tail(stand_in(old, self._form), [_KINDS[kind] for kind in new], tools, {})
        except BadRequest:
            return None  # a conversation that the template does not take
