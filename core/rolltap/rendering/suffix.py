"""Rendering what follows a recorded sequence, without rendering the sequence again."""

from collections.abc import Sequence
from typing import Any

import msgspec

from rolltap.errors import BadRequest
from rolltap.rendering.boundary import NEXT_MARK, BoundaryFinder, Seam, TurnBoundary, after_mark
from rolltap.rendering.dummy_prefix import DUMMY_PREFIXES, DummyPrefix
from rolltap.rendering.messages import as_dict, name_calls, place_systems
from rolltap.rendering.template import ChatTemplate
from rolltap.rendering.template_capabilities import PROBE_TOOLS, TemplateCapabilities
from rolltap.types.chat import ChatRequest, Message, Role, ToolCall

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
    """Renders new messages behind a dummy prefix in place of the old ones.

    The last assistant message of the dummy ends in a mark. What the template shows after the mark follows the
    recorded sequence, except for the end of the turn: the sequence may have it already.
    """

    def __init__(
        self,
        template: ChatTemplate,
        capabilities: TemplateCapabilities,
        finder: BoundaryFinder,
        boundary: TurnBoundary,
    ) -> None:
        self._template = template
        self._capabilities = capabilities
        # A template that takes system messages at the beginning alone takes none in what follows.
        later = "nowhere" if capabilities.systems == "first" else capabilities.systems
        self._later = msgspec.structs.replace(capabilities, systems=later)
        self._boundary = boundary
        self._finder = finder
        self._seams: dict[tuple[bool, Role | None, bool], Seam | None] = {}
        self.dummy_prefix: DummyPrefix = next(one for one in DUMMY_PREFIXES if self._is_enough(one))
        self._needs_tools = not self._is_enough(self.dummy_prefix, _OTHER_TOOLS)

    def text(self, request: ChatRequest, kept: int, last_id: int) -> str:
        """The text that follows a sequence which covers `messages[:kept]` and ends in `last_id`."""
        messages = name_calls(request.messages, self._capabilities)
        old = place_systems(messages[:kept], self._capabilities)
        new = place_systems(messages[kept:], self._later)
        # Long tools take a while to render, and hardly any template shows them again.
        tools = request.tools if self._needs_tools or not request.tools else PROBE_TOOLS
        prefix = self.dummy_prefix(old, self._capabilities)
        tail = self._tail(prefix, new, tools, request.template_kwargs)
        if tail is None:
            raise BadRequest(
                "the model's chat template does not show the last assistant message of this conversation, so it "
                'cannot be continued from its record: set history = "template" for this model',
                param="messages",
            )
        calls = bool(old[-1].tool_calls) and self._capabilities.shows_calls
        seam = self._seam(calls, new[0].role if new else None, tools=bool(tools))
        if seam is None or not seam.begins(tail):
            # The template looks at more than the roles. What a message spells must not pass for the turn's end.
            between = self._before_next(prefix, new, tools, request.template_kwargs)
            between = tail if between is None or not tail.startswith(between) else between
            seam = self._finder.locate(between, calls=calls, tools=bool(tools))
        return tail[seam.start_after(last_id, self._boundary) :]

    def _tail(
        self,
        old: Sequence[dict[str, Any]],
        new: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        variables: dict[str, Any],
    ) -> str | None:
        messages = [*old, *(as_dict(message, self._capabilities) for message in new)]
        return after_mark(self._template.render(messages, tools=tools, variables=variables))

    def _before_next(
        self,
        old: Sequence[dict[str, Any]],
        new: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        variables: dict[str, Any],
    ) -> str | None:
        """What stands between the last assistant's words and the first of the new ones that is shown."""
        marked = [msgspec.structs.replace(message, content=NEXT_MARK) for message in new]
        try:
            tail = self._tail(old, marked, tools, variables)
        except BadRequest:
            return None
        return None if tail is None else tail.partition(NEXT_MARK)[0]

    def _seam(self, calls: bool, next_role: Role | None, *, tools: bool) -> Seam | None:
        key = (calls, next_role, tools)
        if key not in self._seams:
            self._seams[key] = self._finder.seam(calls=calls, next_role=next_role, tools=tools)
        return self._seams[key]

    def _is_enough(self, dummy: DummyPrefix, other_tools: Sequence[dict[str, Any]] | None = None) -> bool:
        """Whether suffixes come out as behind a whole conversation, also with other tools where those are given."""
        whole = DUMMY_PREFIXES[-1]
        return all(
            self._probe(dummy, kept, new, tools if other_tools is None or not tools else other_tools)
            == self._probe(whole, kept, new, tools)
            for kept, new in _HISTORIES
            for tools in (PROBE_TOOLS, [])
            if self._probe(whole, kept, new, tools) is not None
        )

    def _probe(self, dummy: DummyPrefix, kept: str, new: str, tools: Sequence[dict[str, Any]]) -> str | None:
        old = [_KINDS[kind] for kind in kept]
        try:
            return self._tail(dummy(old, self._capabilities), [_KINDS[kind] for kind in new], tools, {})
        except BadRequest:
            return None  # a conversation that the template does not take
