"""What a request sends to a token backend: which recorded node it extends, and the ids that come after it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rolltap.models import Model
from rolltap.record import canonical
from rolltap.record.forest import Forest, Node, branch_reason
from rolltap.rendering import Rendered, Renderer
from rolltap.types.chat import ChatRequest, Message
from rolltap.types.record import Context, Fingerprint, Prompt, pack_ids

_OFF_LOOP_CHARS = 20_000
"""Texts longer than this are rendered and tokenized in a thread: the loop serves others meanwhile."""


class Conversation(NamedTuple):
    """A request's place in the forest, found when it starts; others may commit beside it meanwhile."""

    context: Context
    parent: Node | None
    kept: int
    """How many of the request's messages the parent covers."""
    new: list[Fingerprint]
    """The messages after those."""
    link: bytes
    """The hash chain up to the last message; b"" for a raw prompt, which no conversation matches."""
    note: str | None = None
    """A reason to branch that the messages themselves don't show."""

    def why(self) -> str:
        """What the call extends, in words: what `render` shows."""
        if self.parent is None:
            return "no recorded conversation begins like this one"
        if self.note is not None or not self.kept:
            return "the prompt begins with this node's recorded sequence"
        return f"messages[0] to messages[{self.kept - 1}] are recorded up to this node"

    def branch_reason(self, forest: Forest) -> str | None:
        """Why this call did not extend a leaf; None where it did or is the first."""
        if self.note is not None:
            return self.note
        if self.link:
            return branch_reason(forest, self.parent, self.context, self.new, self.kept)
        siblings = self.parent.children if self.parent else forest.roots
        return "the prompt goes on differently" if siblings else None


NOWHERE = Conversation(Context("", b"", b""), None, 0, [], b"")
"""The place of a request that no session records: nobody asks for it, so finding it would be work for nothing."""


class TokenPrompt(NamedTuple):
    """A request ready for a token backend."""

    conversation: Conversation
    ids: list[int]
    """Everything the engine is sent: the parent's recorded ids, then the new ones."""
    new: Prompt
    """The new part, as it is recorded."""
    tail: str
    """The prompt's last text: some templates open the model's thinking there."""


def place(request: ChatRequest, forest: Forest, *, model: str, tokens: bool) -> Conversation:
    """Find the longest recorded conversation that the request's messages go on from."""
    context = canonical.context(model, request.tools, request.template_kwargs)
    messages = [canonical.fingerprint(message) for message in request.messages]
    start = canonical.chain_start(context)
    links = canonical.chain(start, messages)
    parent, kept = forest.match(links, messages, tokens=tokens)
    return Conversation(context, parent, kept, messages[kept:], links[-1] if links else start)


async def prepare(request: ChatRequest, forest: Forest, model: Model) -> TokenPrompt:
    """The ids for a request to `model`, extending what `forest` has recorded of it."""
    renderer = model.tokenizing
    if request.prompt is not None:
        return await _raw(request, forest, model.name, renderer)
    conversation = place(request, forest, model=model.name, tokens=True)
    if model.config.history == "template":
        return await _as_the_template_shows(request, forest, conversation, renderer)
    if conversation.parent is None:
        rendered = await _off_loop(request.messages, lambda: renderer.prompt(request))
        return _prompt(conversation, [], rendered)
    recorded = conversation.parent.tokens()
    new = request.messages[conversation.kept :]
    rendered = await _off_loop(new, lambda: renderer.suffix(request, conversation.kept, recorded[-1]))
    return _prompt(conversation, recorded, rendered)


def _prompt(conversation: Conversation, recorded: list[int], rendered: Rendered) -> TokenPrompt:
    new = Prompt(ids=pack_ids(rendered.ids), messages=conversation.new)
    return TokenPrompt(conversation, recorded + rendered.ids, new, rendered.text[-200:])


async def _off_loop(new: Sequence[Message], render: Callable[[], Rendered]) -> Rendered:
    if sum(len(message.text) for message in new) < _OFF_LOOP_CHARS:
        return render()
    return await asyncio.to_thread(render)


async def _as_the_template_shows(
    request: ChatRequest, forest: Forest, recorded: Conversation, renderer: Renderer
) -> TokenPrompt:
    """`history = "template"`: the whole conversation as the template renders it, recorded ids or not."""
    rendered = await _off_loop(request.messages, lambda: renderer.prompt(request))
    parent, covered = forest.match_ids(rendered.ids, model=recorded.context.model)
    note = None
    if recorded.parent is not None and parent is not recorded.parent:
        note = 'history = "template": the template shows the recorded turns differently'
    new = Prompt(ids=pack_ids(rendered.ids[covered:]), messages=recorded.new)
    conversation = recorded._replace(parent=parent, note=note)
    return TokenPrompt(conversation, rendered.ids, new, rendered.text[-200:])


async def _raw(request: ChatRequest, forest: Forest, model: str, renderer: Renderer) -> TokenPrompt:
    """A raw prompt: it extends the longest recorded sequence that it begins with."""
    context = canonical.context(model, [], {})
    if isinstance(request.prompt, list):
        ids = request.prompt
        parent, covered = forest.match_ids(ids, model=model)
        conversation = Conversation(context, parent, 0, [], b"")
        return TokenPrompt(conversation, ids, Prompt(ids=pack_ids(ids[covered:])), "")
    text = request.prompt or ""
    parent, start = forest.match_text(text, model=model)
    note = None
    if parent is not None:
        new = renderer.encode(text[start:])
        closing = parent.last_id()
        if closing not in renderer.end_ids:
            return _raw_prompt(Conversation(context, parent, 0, [], b""), parent.tokens(), new, text[start:])
        if new[:1] == [closing]:
            return _raw_prompt(
                Conversation(context, parent, 0, [], b""), parent.tokens(), new[1:], text[start:]
            )
        note = "the prompt goes on without the end-of-turn token that the model produced"
    ids = await asyncio.to_thread(renderer.encode, text, add_special_tokens=True)
    return _raw_prompt(Conversation(context, None, 0, [], b"", note), [], ids, text)


def _raw_prompt(conversation: Conversation, recorded: list[int], new: list[int], text: str) -> TokenPrompt:
    return TokenPrompt(conversation, recorded + new, Prompt(ids=pack_ids(new), text=text), "")
