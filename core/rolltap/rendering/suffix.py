"""Rendering what follows a recorded sequence, without rendering the sequence again."""

from collections.abc import Sequence
from typing import Any

import msgspec

from rolltap.errors import BadRequest
from rolltap.rendering.boundary import (
    BoundaryFinder,
    Seam,
    TurnBoundary,
    after_mark,
    assistant_dict,
    find_boundary,
)
from rolltap.rendering.codec import Codec
from rolltap.rendering.forms import PROBE_TOOLS
from rolltap.rendering.messages import MessageForm, as_dict, place_systems
from rolltap.rendering.template import ChatTemplate
from rolltap.types.chat import ChatRequest, Message, ToolCall

_CALL = ToolCall(name="probe", id="call00001", arguments='{"query": "x"}')
_SECOND_CALL = ToolCall(name="probe", id="call00002", arguments='{"query": "y"}')
_KINDS = {
    "s": Message(role="system", content="Be brief."),
    "u": Message(role="user", content="Hello"),
    "a": Message(role="assistant", content="Hello yourself."),
    "c": Message(role="assistant", tool_calls=[_CALL]),
    "p": Message(role="assistant", tool_calls=[_CALL, _SECOND_CALL]),
    "t": Message(role="tool", content="Found.", tool_call_id=_CALL.id, name=_CALL.name),
    "v": Message(role="tool", content="Found too.", tool_call_id=_SECOND_CALL.id, name=_CALL.name),
}
_HISTORIES = (
    ("uaua", "u"),
    ("suaua", "u"),
    ("uctauaua", "u"),
    ("ucta", "u"),
    ("uctc", "t"),
    ("sucta", "u"),
    ("uctauc", "t"),
    ("upvtauc", "t"),
    ("suctcta", "ucta"),
)
"""Conversations, as kept and new messages, that tell whether a template remembers more than it should."""


class SuffixRenderer:
    """Renders new messages behind a stand-in for the old ones: same roles and calls, next to no text.

    The last assistant message of the stand-in ends in a mark; what the template shows after the mark is what
    follows the recorded sequence, but for the end of the turn, which the sequence may have itself.
    """

    def __init__(
        self, template: ChatTemplate, form: MessageForm, codec: Codec, boundary: TurnBoundary
    ) -> None:
        self._template = template
        self._form = form
        self._codec = codec
        self._boundary = boundary
        self._finder = BoundaryFinder(template, form, codec)
        self._seams: dict[tuple[bool, str, bool], Seam | None] = {}
        self.needs_roles = not all(self._short_is_enough(kept, new) for kept, new in _HISTORIES)
        """Whether the template needs every role of the conversation, and not only the last ones, to render a
        suffix; the stand-in is then as long as the conversation has messages."""

    def text(self, request: ChatRequest, kept: int, last_id: int) -> str:
        """The text that follows a sequence which covers `messages[:kept]` and ends in `last_id`."""
        old = place_systems(request.messages[:kept], self._form)
        new = place_systems(request.messages[kept:], self._later_form)
        stand_in = self._whole(old) if self.needs_roles else self._short(old)
        tail = self._tail(stand_in, new, request.tools, request.template_kwargs)
        if tail is None:
            raise BadRequest(
                "the model's chat template does not show the last assistant message of this conversation, so it "
                'cannot be continued from its record: set history = "template" for this model',
                param="messages",
            )
        calls = bool(old[-1].tool_calls) and self._form.shows_calls
        return self._without_end(tail, self._seam(calls, new, tools=bool(request.tools)), last_id)

    @property
    def _later_form(self) -> MessageForm:
        """A template that takes system messages at the beginning alone takes none in what follows."""
        if self._form.systems != "first":
            return self._form
        return msgspec.structs.replace(self._form, systems="nowhere")

    def _tail(
        self,
        stand_in: Sequence[dict[str, Any]],
        new: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        variables: dict[str, Any],
    ) -> str | None:
        messages = [*stand_in, *(as_dict(message, self._form) for message in new)]
        return after_mark(self._template.render(messages, tools=tools, variables=variables))

    def _whole(self, old: Sequence[Message]) -> list[dict[str, Any]]:
        return [*(self._stand_in(message) for message in old[:-1]), assistant_dict(self._form, old[-1])]

    def _short(self, old: Sequence[Message]) -> list[dict[str, Any]]:
        systems = []
        for message in old:
            if message.role not in {"system", "developer"}:
                break
            systems.append(as_dict(message, self._form))
        return [*systems, {"role": "user", "content": "x"}, assistant_dict(self._form, old[-1])]

    def _stand_in(self, message: Message) -> dict[str, Any]:
        if message.role in {"system", "developer"}:
            return as_dict(message, self._form)  # some templates repeat it in a later turn
        calls = [ToolCall(name=call.name, id=call.id) for call in message.tool_calls]
        short = Message(
            role=message.role,
            content="x" if message.text or not calls else None,
            tool_calls=calls,
            tool_call_id=message.tool_call_id,
            name=message.name,
        )
        return as_dict(short, self._form)

    def _seam(self, calls: bool, new: Sequence[Message], *, tools: bool) -> Seam | None:
        key = (calls, new[0].role if new else "", tools)
        if key not in self._seams:
            self._seams[key] = self._finder.seam(self._boundary, calls=calls, next_role=key[1], tools=tools)
        return self._seams[key]

    def _without_end(self, tail: str, seam: Seam | None, last_id: int) -> str:
        """Drop what the recorded sequence has: the turn's end where it ends in one, and markup before it."""
        if seam is None or not tail.startswith(seam.between[: seam.end]):
            # The template looks at the messages' text. The first end of a turn in it is the one that is meant,
            # unless the template has none here and a message spells one.
            start, end = find_boundary(tail, self._boundary, self._codec) or (0, 0)
        else:
            start, end = seam.start, seam.end
        token = self._codec.id_of(tail[start:end])
        if token is None:
            return tail[start:]
        ended = last_id == token or (last_id in self._boundary.ids and token in self._boundary.closers)
        return tail[end:] if ended else tail[start:]

    def _short_is_enough(self, kept: str, new: str) -> bool:
        old = [_KINDS[kind] for kind in kept]
        following = [_KINDS[kind] for kind in new]
        for tools in (PROBE_TOOLS, []):
            try:
                whole = self._tail(self._whole(old), following, tools, {})
            except BadRequest:
                continue  # a conversation that the template does not take at all
            try:
                short = self._tail(self._short(old), following, tools, {})
            except BadRequest:
                return False
            if short != whole:
                return False
        return True
