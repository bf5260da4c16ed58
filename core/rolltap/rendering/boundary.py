"""Where an assistant's turn ends in a template, and what of that a recorded sequence already has."""

import secrets
from collections.abc import Iterable
from functools import cache
from itertools import takewhile
from typing import Any

from msgspec import Struct

from rolltap.errors import BadRequest
from rolltap.rendering.codec import Codec, TokenSpan
from rolltap.rendering.dummy_prefix import last_assistant
from rolltap.rendering.messages import as_dict
from rolltap.rendering.template import ChatTemplate
from rolltap.rendering.template_capabilities import MARK, PROBE_TOOLS, TemplateCapabilities
from rolltap.types.chat import Message, Role, ToolCall

NEXT_MARK = f"next{secrets.token_hex(8)}"
"""The text of the message after the assistant's. It does not contain MARK."""

_CALL = ToolCall(name="probe", id="call00001")


class TurnBoundary(Struct, frozen=True, kw_only=True):
    """The ids that stand at the end of an assistant's turn.

    `end_ids` end a turn and belong to it (`<|im_end|>`, `<|eot_id|>`, `</s>`). `next_turn_ids` begin the next message.
    In templates without an end id the model stops with these (GLM's `<|user|>`).
    """

    end_ids: frozenset[int]
    next_turn_ids: frozenset[int]

    @property
    def ids(self) -> frozenset[int]:
        """Both kinds."""
        return self.end_ids | self.next_turn_ids


class Seam(Struct, frozen=True, kw_only=True):
    """What a template puts between an assistant's last words and the next message's first, for one kind of turn.

    Three parts follow each other: the rest of the answer's own markup, the end id, and what belongs to the next
    message, white space before its header included. Where the template closes no turn, the second part is empty.
    """

    between: str
    end_start: int
    """Where the end id begins in `between`. After a turn that was cut, the next prompt goes on here."""
    end_stop: int
    """Where the next message's part begins. After a turn with an end id, the next prompt goes on here."""
    next_id: int | None = None
    """The id of the next message's header, where it follows without an end id: the model may stop with it."""
    next_stop: int = 0
    """Where that header's token ends."""

    def start_after(self, last_id: int, boundary: TurnBoundary) -> int:
        """Where in `between` the next prompt goes on after a recorded sequence that ends in `last_id`."""
        if last_id == self.next_id:
            return self.next_stop
        return self.end_stop if last_id in boundary.ids else self.end_start

    def begins(self, text: str) -> bool:
        """Whether the text begins with the part of the seam that matters."""
        return text.startswith(self.between[: max(self.end_stop, self.next_stop)])


def after_mark(text: str) -> str | None:
    """What follows the last MARK; None where the template does not show it."""
    _, found, tail = text.rpartition(MARK)
    return tail if found else None


def with_next_mark(role: Role, capabilities: TemplateCapabilities) -> dict[str, Any]:
    """A message of the role with NEXT_MARK as its text; a tool's message answers the probe's call."""
    if role != "tool":
        return as_dict(Message(role=role, content=NEXT_MARK), capabilities)
    result = Message(role="tool", content=NEXT_MARK, tool_call_id=_CALL.id, name=_CALL.name)
    return as_dict(result, capabilities)


class BoundaryFinder:
    """Finds out, by rendering messages of its own, how a template ends turns.

    The model's end ids come first: the first of them in a seam is the turn's end. Only where none stands there is the
    template asked: a special token that follows the answer whether or not a message comes after it ends the turn.
    """

    def __init__(
        self,
        template: ChatTemplate,
        capabilities: TemplateCapabilities,
        codec: Codec,
        model_end_ids: Iterable[int],
    ) -> None:
        self._template = template
        self._capabilities = capabilities
        self._codec = codec
        self._model_end_ids = frozenset(model_end_ids)
        self._answer_end_id: int | None = None
        user = {"role": "user", "content": MARK}
        opening, _, rest = self._render([user], prompt=False).rpartition(MARK)
        self._after_user = {span.id for span in codec.special_spans(rest)}
        """Special tokens that close a user's message."""
        opened = codec.special_spans(opening)
        if opened and opened[0].id in (codec.tokenizer.bos_token_id, codec.tokenizer.eos_token_id):
            # It begins the text, not the message. Some models have one token for both ends of a text.
            del opened[0]
        self._before_user = {span.id for span in opened}
        """Special tokens that open a conversation with a user's message."""
        self._ending = cache(self._find_ending)
        self._shared = cache(self._find_shared)

    def find(self) -> TurnBoundary:
        """The ids that end a turn: the model's own, and those of the template where these do not occur in it."""
        answer = self.seam(calls=False, next_role="user", tools=False)
        seams = [answer]
        if answer is not None and answer.end_start < answer.end_stop:
            self._answer_end_id = self._codec.id_of(answer.between[answer.end_start : answer.end_stop])
        if self._capabilities.shows_calls:
            seams += [self.seam(calls=True, next_role=role, tools=True) for role in ("tool", "user")]
        found = [seam for seam in seams if seam is not None]
        ends = {
            self._codec.id_of(seam.between[seam.end_start : seam.end_stop])
            for seam in found
            if seam.end_start < seam.end_stop
        }
        next_turn_ids = {seam.next_id for seam in found if seam.next_id is not None} - ends
        end_ids = {index for index in ends if index is not None} | (self._model_end_ids - next_turn_ids)
        return TurnBoundary(end_ids=frozenset(end_ids), next_turn_ids=frozenset(next_turn_ids))

    def seam(self, *, calls: bool, next_role: Role | None, tools: bool) -> Seam | None:
        """The seam between an assistant's turn and a next message of that role, or the generation prompt.

        None where the template refuses such a conversation or does not show the messages.
        """
        between = self._between(calls=calls, next_role=next_role, tools=tools)
        return None if between is None else self.locate(between, calls=calls, tools=tools)

    def locate(self, between: str, *, calls: bool, tools: bool) -> Seam:
        """Find the end of the turn in the text between an assistant's last words and the next message's first."""
        spans = self._codec.special_spans(between)
        if not spans and not calls:
            # A token that was added and is not special may end an answer too; after a call it is the call's markup.
            spans = self._codec.added_spans(between)
        ending = self._ending(calls=calls, tools=tools)
        common = sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ending, between, strict=False))
        )
        # Two tokens may begin with the same letters.
        common = next((span.start for span in spans if span.start < common < span.stop), common)
        markup = len(between[:common].rstrip()) if calls else 0
        end = self._end(spans, common, calls=calls, tools=tools)
        if end is not None:
            return Seam(between=between, end_start=end.start, end_stop=end.stop)
        header = next((span for span in spans if span.start >= markup), None)
        if header is None or between[markup : header.start].strip():
            return Seam(between=between, end_start=markup, end_stop=markup)
        return Seam(
            between=between, end_start=markup, end_stop=markup, next_id=header.id, next_stop=header.stop
        )

    def _end(self, spans: list[TokenSpan], common: int, *, calls: bool, tools: bool) -> TokenSpan | None:
        """The token that ends the turn. `common` is how much of `between` is there without a next message too."""
        own = next((span for span in spans if span.id in self._model_end_ids), None)
        if own is not None and (
            own.stop <= common
            or own.id in self._after_user
            or not self._is_header(own.id, calls=calls, tools=tools)
        ):
            return own
        shared = self._shared(calls=calls, tools=tools)
        closing = list(
            takewhile(
                lambda span: span.stop <= common or span.id in self._after_user or span in shared, spans
            )
        )
        if not closing or not calls:
            return closing[-1] if closing else None
        if self._answer_end_id is None:
            return None
        # Further special tokens may be the call's own markup.
        return next((span for span in closing if span.id == self._answer_end_id), closing[-1])

    def _find_shared(self, *, calls: bool, tools: bool) -> set[TokenSpan]:
        """Special tokens after an assistant's words, whatever follows, that open no message.

        Some templates end the last message of all in another way than earlier ones, or not at all.
        """
        roles: tuple[Role | None, ...] = ("user", None)
        user, opening = (
            self._codec.special_spans(self._between(calls=calls, next_role=role, tools=tools) or "")
            for role in roles
        )
        return {span for span in set(user) & set(opening) if span.id not in self._before_user}

    def _is_header(self, index: int, *, calls: bool, tools: bool) -> bool:
        """Whether the token opens the next message: it opens a first one too, or differs by the next one's role."""
        if index in self._before_user:
            return True
        roles: tuple[Role, ...] = ("user", "tool", "assistant", "system")
        texts = (self._between(calls=calls, next_role=role, tools=tools) or "" for role in roles)
        firsts = {
            next(
                (span.id for span in self._codec.special_spans(text) if span.id in self._model_end_ids), None
            )
            for text in texts
        }
        return len(firsts - {None}) > 1

    def _between(self, *, calls: bool, next_role: Role | None, tools: bool) -> str | None:
        next_message = [] if next_role is None else [with_next_mark(next_role, self._capabilities)]
        text = self._render([*self._turn(calls=calls), *next_message], tools=tools)
        if next_role is None:
            return after_mark(text)
        before, found, _ = text.partition(NEXT_MARK)
        return after_mark(before) if found else None

    def _find_ending(self, *, calls: bool, tools: bool) -> str:
        """What follows an assistant's last words where nothing comes after."""
        return after_mark(self._render(self._turn(calls=calls), tools=tools, prompt=False)) or ""

    def _turn(self, *, calls: bool) -> list[dict[str, Any]]:
        like = Message(role="assistant", tool_calls=(_CALL,) if calls else ())
        return [{"role": "user", "content": "Hello"}, last_assistant(like, self._capabilities)]

    def _render(self, messages: list[dict[str, Any]], *, tools: bool = False, prompt: bool = True) -> str:
        """The text; "" where the template refuses the messages."""
        try:
            return self._template.render(
                messages, tools=PROBE_TOOLS if tools else (), generation_prompt=prompt
            )
        except BadRequest:
            return ""
