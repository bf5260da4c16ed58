"""What a request sends to a token backend: which recorded node it extends, and the ids that come after it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from rolltap.models import Model
from rolltap.record.canonical import Fingerprint
from rolltap.record.fold import SessionRecord
from rolltap.record.forest import Node
from rolltap.rendering import Rendered, Renderer
from rolltap.turns.attachments import in_words
from rolltap.turns.begun import begun_prompt, split_begun
from rolltap.types.chat import ChatRequest, Message
from rolltap.types.ledger import Context, Definition, Prompt
from rolltap.types.nodes import pack_ids, unpack_ids

_OFF_LOOP_CHARS = 20_000
"""Texts longer than this are rendered and tokenized in a thread: the loop serves others meanwhile."""


_TAIL_TOKENS = 100
"""How much of a recorded sequence is decoded to see what it ends in."""


class Placement(NamedTuple):
    """A request's place in the forest, found when it starts; others may commit beside it meanwhile."""

    context: Context
    canonical: bytes = b""
    """The context's canonical digest."""
    definitions: tuple[Definition, ...] = ()
    """What of the context the session has not kept yet."""
    parent: Node | None = None
    """The node whose ids are sent again."""
    after: Node | None = None
    """The node whose conversation the request's messages go on from."""
    kept: int = 0
    """How many of the request's messages that conversation covers."""
    new: Sequence[Fingerprint] = ()
    """The messages after those."""
    note: str | None = None
    """A reason to branch that the messages themselves don't show."""

    def why(self) -> str:
        """What the call extends, in words: what `render` shows."""
        if self.parent is None:
            return "no recorded conversation begins like this one"
        if self.note is not None or not self.kept:
            return "the prompt begins with this node's recorded sequence"
        return f"messages[0] to messages[{self.kept - 1}] are recorded up to this node"

    def branch_reason(self, record: SessionRecord) -> str | None:
        """Why this call would not extend a leaf; None where it would, or would be the first."""
        if self.note is not None:
            return self.note
        return record.forest.branch_reason(self.parent, self.canonical, self.context, self.new, self.kept)


class TokenPrompt(NamedTuple):
    """A request ready for a token backend."""

    placement: Placement
    ids: list[int]
    """Everything the engine is sent: the parent's recorded ids, then the new ones."""
    new: Prompt
    """The new part, as it is recorded."""
    tail: str
    """The prompt's last text: some templates open the model's thinking there."""
    messages: tuple[Message, ...] = ()
    """The conversation as the model reads it, without the beginning of the answer."""
    begun: Message | None = None
    """The beginning of the answer, where the client has given one: the prompt ends with it."""
    notes: tuple[str, ...] = ()
    """What a reader of the node should know, in words."""


def find_parent(request: ChatRequest, record: SessionRecord, *, model: str, tokens: bool) -> Placement:
    """Find the longest recorded conversation that the request's messages go on from; a begun answer is none of them."""
    conversation, _ = split_begun(request)
    context, new = record.definitions.context(model, request.tools, request.template_kwargs)
    canonical = record.definitions.canonical(context, new)
    match = record.forest.find_parent(conversation, canonical, tokens=tokens)
    return Placement(context, canonical, new, match.node, match.node, match.kept, match.new)


async def prepare(request: ChatRequest, record: SessionRecord, model: Model) -> TokenPrompt:
    """The ids for a request to `model`, extending what `record` has of it."""
    renderer = model.tokenizing
    if request.prompt is not None:
        return await _raw(request, record, model.name, renderer)
    read = in_words(request.messages)
    request = msgspec.structs.replace(request, messages=read.messages)
    conversation, begun = split_begun(request)
    placement = find_parent(request, record, model=model.name, tokens=True)
    notes = [note for index in sorted(read.notes) if index >= placement.kept for note in read.notes[index]]
    notes += _notes(conversation[placement.kept :], renderer)
    if model.config.history == "template":
        prompt = await _as_the_template_shows(request, record, placement, renderer)
    elif begun is not None and (cut := _cut(request, record, model.name, renderer)) is not None:
        recorded = unpack_ids(record.forest.packed_ids(cut)).tolist()
        tail = renderer.decode(recorded[-_TAIL_TOKENS:])
        new = Prompt(messages=conversation[placement.kept :])
        prompt = TokenPrompt(placement._replace(parent=cut), recorded, new, tail)
    else:
        parent = placement.parent
        recorded = unpack_ids(record.forest.packed_ids(parent)).tolist() if parent is not None else []
        last_id = recorded[-1] if recorded else None
        rendered = await _rendered(request, renderer, placement.kept, last_id)
        prompt = _prompt(conversation, placement, recorded, rendered)
    return prompt._replace(messages=conversation, begun=begun, notes=tuple(notes))


def _cut(request: ChatRequest, record: SessionRecord, model: str, renderer: Renderer) -> Node | None:
    """The recorded answer that the client wants gone on from, where it was cut: its ids stand as they are."""
    finished = msgspec.structs.replace(request, continues=False)
    whole = find_parent(finished, record, model=model, tokens=True)
    node = whole.parent
    if node is None or whole.kept < len(request.messages) or node.last_id() in renderer.end_ids:
        return None
    return node


async def _rendered(request: ChatRequest, renderer: Renderer, kept: int, last_id: int | None) -> Rendered:
    """What the request adds to its first `kept` messages, which are recorded up to `last_id`."""

    def render() -> Rendered:
        if request.continues:
            return begun_prompt(request, renderer, kept, last_id)
        return renderer.prompt(request) if last_id is None else renderer.suffix(request, kept, last_id)

    return await _off_loop(request.messages[kept:], render)


def _prompt(
    conversation: Sequence[Message], placement: Placement, recorded: list[int], rendered: Rendered
) -> TokenPrompt:
    new = Prompt(ids=pack_ids(rendered.ids), messages=tuple(conversation[placement.kept :]))
    return TokenPrompt(placement, recorded + rendered.ids, new, rendered.text[-200:])


def _notes(messages: Sequence[Message], renderer: Renderer) -> tuple[str, ...]:
    """What of the new messages the template hides from the model."""
    if renderer.capabilities.shows_tool_results or all(message.role != "tool" for message in messages):
        return ()
    return ("the chat template does not show the results of tools: the model has not seen them",)


async def _off_loop(new: Sequence[Message], render: Callable[[], Rendered]) -> Rendered:
    if sum(len(message.text) for message in new) < _OFF_LOOP_CHARS:
        return render()
    return await asyncio.to_thread(render)


async def _as_the_template_shows(
    request: ChatRequest, record: SessionRecord, recorded: Placement, renderer: Renderer
) -> TokenPrompt:
    """`history = "template"`: the whole conversation as the template renders it, recorded ids or not."""
    rendered = await _rendered(request, renderer, 0, None)
    parent, covered = record.forest.match_ids(pack_ids(rendered.ids), model=recorded.context.model)
    note = None
    if recorded.parent is not None and parent is not recorded.parent:
        note = 'history = "template": the template shows the recorded turns differently'
    conversation, _ = split_begun(request)
    new = Prompt(ids=pack_ids(rendered.ids[covered:]), messages=conversation[recorded.kept :])
    placement = recorded._replace(parent=parent, note=note)
    return TokenPrompt(placement, rendered.ids, new, rendered.text[-200:])


async def _raw(request: ChatRequest, record: SessionRecord, model: str, renderer: Renderer) -> TokenPrompt:
    """A raw prompt: it extends the longest recorded sequence that it begins with."""
    place = Placement(Context(model))
    if isinstance(request.prompt, tuple):
        packed = pack_ids(request.prompt)
        parent, covered = record.forest.match_ids(packed, model=model)
        new = Prompt(ids=packed[covered * 4 :])
        return TokenPrompt(place._replace(parent=parent), [*request.prompt], new, "")
    text = request.prompt or ""
    parent, start = record.forest.match_text(text, model=model)
    note = None
    if parent is not None:
        ids = renderer.encode(text[start:])
        last = parent.last_id()
        if last not in renderer.end_ids:
            return _raw_prompt(place._replace(parent=parent), parent.tokens(), ids, text[start:])
        if ids[:1] == [last]:
            return _raw_prompt(place._replace(parent=parent), parent.tokens(), ids[1:], text[start:])
        note = "the prompt goes on without the end-of-turn token that the model produced"
    if len(text) < _OFF_LOOP_CHARS:
        ids = renderer.encode(text, add_special_tokens=True)
    else:
        ids = await asyncio.to_thread(renderer.encode, text, add_special_tokens=True)
    return _raw_prompt(place._replace(note=note), [], ids, text)


def _raw_prompt(placement: Placement, recorded: list[int], new: list[int], text: str) -> TokenPrompt:
    return TokenPrompt(placement, recorded + new, Prompt(ids=pack_ids(new), text=text), "")
