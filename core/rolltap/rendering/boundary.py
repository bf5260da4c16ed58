"""Where an assistant's turn ends in a template, and what of that a recorded sequence already has."""

from collections.abc import Iterable
from itertools import takewhile

from msgspec import Struct

from rolltap.errors import BadRequest
from rolltap.rendering.codec import Codec
from rolltap.rendering.forms import MARK, PROBE_TOOLS
from rolltap.rendering.messages import MessageForm, as_dict
from rolltap.rendering.standin import last_assistant
from rolltap.rendering.template import ChatTemplate
from rolltap.types.chat import Message, ToolCall

NEXT_MARK = f"next{MARK}"


class TurnBoundary(Struct, frozen=True, kw_only=True):
    """The ids that stand at the end of an assistant's turn.

    `closers` end a turn and belong to it (`<|im_end|>`, `<|eot_id|>`, `</s>`). `openers` begin the next message and
    are what the model stops with all the same, in templates that have no closer (GLM's `<|user|>`).
    """

    closers: frozenset[int]
    openers: frozenset[int]

    @property
    def ids(self) -> frozenset[int]:
        """All of them."""
        return self.closers | self.openers


class Seam(Struct, frozen=True, kw_only=True):
    """What a template puts between an assistant's last words and the next message's first, for one kind of turn."""

    between: str
    start: int
    """Where the boundary's token begins in `between`; before it is what belongs to the turn's own text, such as
    the end of a tool call's markup. Where there is no such token: where the next message's own text begins."""
    end: int
    """Where the boundary's token ends; equal to `start` where there is none."""


def after_mark(text: str) -> str | None:
    """What follows the last MARK; None where the template does not show it."""
    _, found, tail = text.rpartition(MARK)
    return tail if found else None


class BoundaryFinder:
    """Asks a template, with messages of its own, how turns end."""

    def __init__(self, template: ChatTemplate, form: MessageForm, codec: Codec) -> None:
        self._template = template
        self._form = form
        self._codec = codec

    def tail(
        self, *, calls: bool, next_role: str = "", tools: bool = True, prompt: bool = False
    ) -> str | None:
        """What follows an assistant's words: up to the next message's, or to the end without a next message.

        None where the template refuses such a conversation or does not show the message.
        """
        call = ToolCall(name="probe", id="call00001")
        like = Message(role="assistant", tool_calls=(call,) if calls else ())
        messages = [{"role": "user", "content": "Hello"}, last_assistant(like, self._form)]
        if next_role:
            answers = {"tool_call_id": call.id, "name": call.name} if next_role == "tool" else {}
            following = Message(role=next_role, content=NEXT_MARK, **answers)  # type: ignore[arg-type]
            messages.append(as_dict(following, self._form))
        try:
            text = self._template.render(
                messages, tools=PROBE_TOOLS if tools else (), generation_prompt=prompt or bool(next_role)
            )
        except BadRequest:
            return None
        before, found, _ = text.partition(NEXT_MARK)
        return after_mark(before if found else text) if found or not next_role else None

    def find(self, end_ids: Iterable[int]) -> TurnBoundary:
        """The ids that end a turn: the template's own, and `end_ids`, the model's."""
        closers = set(end_ids)
        openers: set[int] = set()
        end = self._first(self.tail(calls=False, tools=False))
        user = self._first(self.tail(calls=False, next_role="user", tools=False))
        if end:
            closers.update(end, user)
        else:
            openers.update(user)
        if self._form.shows_calls:
            self._add_after_calls(closers, openers)
        closers -= openers
        return TurnBoundary(closers=frozenset(closers), openers=frozenset(openers))

    def _add_after_calls(self, closers: set[int], openers: set[int]) -> None:
        """Some models end a turn that calls tools in a way of its own (gpt-oss's `<|call|>`)."""
        end = self._specials(self.tail(calls=True))
        tool = self._specials(self.tail(calls=True, next_role="tool"))
        own = [index for index, other in zip(end, tool, strict=False) if index == other]
        if own and not closers.intersection(own):
            closers.add(own[-1])
        if not closers.intersection(own) and len(tool) > len(own):
            openers.add(tool[len(own)])

    def _first(self, text: str | None) -> list[int]:
        """The token that ends a plain answer: a special one, else one that was at least added on purpose."""
        added = [
            index for index in self._codec.encode(text or "") if (self._codec.text_of(index) or "").strip()
        ]
        return (self._specials(text) or added)[:1]

    def _specials(self, text: str | None) -> list[int]:
        return self._codec.special_ids_in(text) if text else []

    def seam(self, boundary: TurnBoundary, *, calls: bool, next_role: str, tools: bool) -> Seam | None:
        """The seam between an assistant's turn and a next message of that role, or the generation prompt."""
        between = self.tail(calls=calls, next_role=next_role, tools=tools, prompt=True)
        if between is None:
            return None
        span = find_boundary(between, boundary, self._codec)
        if span is None:
            own = len(self._markup(between, tools=tools)) if calls else 0
            span = own, own
        return Seam(between=between, start=span[0], end=span[1])

    def _markup(self, between: str, *, tools: bool) -> str:
        """What of the text after a call belongs to the call: what is there as well where nothing follows."""
        end = self.tail(calls=True, tools=tools) or ""
        same = takewhile(lambda pair: pair[0] == pair[1], zip(end, between, strict=False))
        return "".join(letter for letter, _ in same).rstrip()


def find_boundary(text: str, boundary: TurnBoundary, codec: Codec) -> tuple[int, int] | None:
    """Where the first of the boundary's tokens stands in the text."""
    spans = []
    for index in boundary.ids:
        token = codec.text_of(index)
        if token and (start := text.find(token)) >= 0:
            spans.append((start, -len(token)))
    if not spans:
        return None
    start, negative_length = min(spans)
    return start, start - negative_length
