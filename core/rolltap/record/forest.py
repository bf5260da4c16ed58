"""The forest of a session: its trees of completions.

A node is one completion: a prompt part (what the call added, not generated) and an output part (generated), below the
node that the call extended. Only what is new is kept, so memory grows with new tokens, not with turns times length. What
a node knows of its place (its key, its heir, why it branched) is found when it is added, in proportion to what is new.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice

from rolltap.record.canonical import Fingerprint, chain, chain_next, fingerprint
from rolltap.record.definitions import Definitions
from rolltap.types.chat import Message
from rolltap.types.ledger import CallRecorded, Context, Delivery, Output, Prompt
from rolltap.types.nodes import unpack_ids

_MOST_COMPARED = 16
"""How many siblings, the latest, a new node is compared with to say why it is none of them: sessions that ask
thousands of unrelated questions must not become slow."""

_MOST_REMEMBERED = 4
"""How many of the latest conversations are remembered as the client wrote them, to be compared message by message."""


class Node:
    """A completion in its tree. `call` and its prompt are shared by the siblings that one call made."""

    __slots__ = (
        "branch_reason",
        "call",
        "canonical",
        "children",
        "delivery",
        "fingerprints",
        "heir",
        "key",
        "num_messages",
        "num_tokens",
        "output",
        "parent",
        "rewards",
        "said",
    )

    def __init__(self, call: CallRecorded, output: Output, parent: "Node | None") -> None:
        self.call = call
        self.output = output
        self.parent = parent
        self.children: list[Node] = []
        self.heir: Node | None = None
        """The child that goes on with the ancestors' trainable tokens: the first trainable one, else the first."""
        self.delivery: Delivery = output.delivery
        self.rewards: dict[str, float] = {}
        self.branch_reason: str | None = None
        """Why the call did not extend a leaf, in words; None where it did, or where it was the first."""
        self.canonical = b""
        """The digest of the context that the conversation stands on."""
        self.key = b""
        """The hash chain up to and including the output: what a later request is matched by; b"" for a raw prompt."""
        self.fingerprints: Sequence[Fingerprint] = ()
        """Of the prompt's messages."""
        self.said: Fingerprint | None = None
        """Of the output."""
        self.num_messages = 0
        """How many messages the conversation has, the output included."""
        own = len(call.prompt.ids) // 4 + len(output.ids) // 4
        self.num_tokens: int = own + (parent.num_tokens if parent is not None else 0)
        """The length of the whole sequence."""

    @property
    def id(self) -> str:
        """Unique in the session."""
        return self.output.node_id

    @property
    def prompt(self) -> Prompt:
        """What the call added after the parent."""
        return self.call.prompt

    @property
    def model(self) -> str:
        """The model that answered."""
        return self.call.context.model

    @property
    def trainable(self) -> bool:
        """Whether the output may be trained on."""
        return self.output.untrainable_reason is None

    @property
    def has_tokens(self) -> bool:
        """Whether the sequence is known as ids; nodes of text-only backends are not."""
        return bool(self.call.prompt.ids or self.output.ids)

    def path(self) -> "list[Node]":
        """The nodes from the root to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def packed_ids(self) -> bytes:
        """The packed ids of the whole sequence, from the root's first to this output's last."""
        parts: list[bytes] = []
        for node in self.path():
            parts += (node.call.prompt.ids, node.output.ids)
        return b"".join(parts)

    def tokens(self) -> list[int]:
        """The ids of the whole sequence."""
        return unpack_ids(self.packed_ids()).tolist()

    def last_id(self) -> int | None:
        """The sequence's last id; None for a text-only node."""
        ids = self.output.ids or self.prompt.ids
        return unpack_ids(ids[-4:])[0] if ids else None


class Match:
    """The recorded conversation that a request goes on from."""

    __slots__ = ("kept", "link", "new", "node")

    def __init__(self, node: Node | None, kept: int, new: list[Fingerprint], link: bytes) -> None:
        self.node = node
        self.kept = kept
        """How many of the request's messages it covers."""
        self.new = new
        """The fingerprints of the messages after those."""
        self.link = link
        """The hash chain up to the request's last message."""


class Forest:
    """All trees of one session."""

    def __init__(self, definitions: Definitions) -> None:
        self.roots: list[Node] = []
        self.num_leaves = 0
        self._definitions = definitions
        self._nodes: dict[str, Node] = {}
        self._by_key: dict[bytes, list[Node]] = {}
        self._remembered: OrderedDict[str, tuple[Message, ...]] = OrderedDict()
        self._sequences: OrderedDict[str, bytes] = OrderedDict()
        """The packed ids of the nodes that were extended last, whole: the next turn most likely goes on from there."""

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        """The nodes in the order they were recorded."""
        return iter(self._nodes.values())

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._nodes

    def __getitem__(self, node_id: str) -> Node:
        return self._nodes[node_id]

    def add(self, call: CallRecorded) -> list[Node]:
        """Take a call; return the nodes of its outputs."""
        parent = self._nodes[call.parent_id] if call.parent_id is not None else None
        after = self._nodes[call.after_id] if call.after_id is not None else None
        canonical = self._definitions.canonical(call.context)
        fingerprints = [fingerprint(message) for message in call.prompt.messages]
        link = after.key if after is not None else canonical
        for each in fingerprints:
            link = chain_next(link, each)
        reason = call.branch_note
        if reason is None:
            reason = self.branch_reason(parent, canonical, call.context, fingerprints, _length(after))
        nodes = []
        for output in call.outputs:
            node = Node(call, output, parent)
            node.canonical, node.fingerprints, node.branch_reason = canonical, fingerprints, reason
            node.num_messages = _length(after) + len(fingerprints) + 1
            self._add_key(node, link)
            nodes.append(node)
        for node in nodes:
            self._place(node)
        return nodes

    def _add_key(self, node: Node, link: bytes) -> None:
        if node.output.message is None or (node.has_tokens and not node.output.ids):
            return  # a raw prompt, or nothing that a later turn could go on from
        node.said = fingerprint(node.output.message)
        node.key = chain_next(link, node.said)
        self._by_key.setdefault(node.key, []).append(node)

    def _place(self, node: Node) -> None:
        parent = node.parent
        self._nodes[node.id] = node
        self.num_leaves += parent is None or bool(parent.children)
        if parent is None:
            self.roots.append(node)
            return
        parent.children.append(node)
        if parent.heir is None or (node.trainable and not parent.heir.trainable):
            parent.heir = node

    def packed_ids(self, node: Node) -> bytes:
        """The packed ids of a node's whole sequence; for the next turn of a conversation in proportion to what is new."""
        parts: list[bytes] = []
        at: Node | None = node
        while at is not None and at.id not in self._sequences:
            parts += (at.output.ids, at.prompt.ids)
            at = at.parent
        if at is not None:
            parts.append(self._sequences.pop(at.id))
        packed = self._sequences[node.id] = b"".join(reversed(parts))
        while len(self._sequences) > _MOST_REMEMBERED:
            self._sequences.popitem(last=False)
        return packed

    def remember(self, node: Node, messages: Sequence[Message], after: Node | None, kept: int) -> None:
        """Keep the conversation before `node`'s output as the client wrote it: the next turn most likely begins so."""
        known = self._remembered.pop(after.id, None) if after is not None else None
        if known is not None and len(known) == kept - 1:
            known = (*known, *messages[kept - 1 :])
        else:
            known = tuple(messages)
        self._remembered[node.id] = known
        while len(self._remembered) > _MOST_REMEMBERED:
            self._remembered.popitem(last=False)

    def find_parent(self, messages: Sequence[Message], canonical: bytes, *, tokens: bool) -> Match:
        """The node that a request extends: the longest match over all nodes.

        `canonical` is the digest of the request's context; `tokens` says whether the node's sequence must be known as
        ids. Where outputs differ in nothing but their thinking, the one whose thinking the client sent back is taken,
        else the latest.
        """
        for node_id in reversed(self._remembered):
            node = self._nodes[node_id]
            if node.canonical == canonical and node.key and node.has_tokens == tokens:
                kept = self._covered(node, messages)
                if kept:
                    return self._longest(node, kept, messages, node.key, tokens=tokens)
        return self._longest(None, 0, messages, canonical, tokens=tokens)

    def _covered(self, node: Node, messages: Sequence[Message]) -> int:
        """How many of the messages are the node's remembered conversation and its output; 0 where they are not."""
        known = self._remembered[node.id]
        before = len(known)
        if len(messages) <= before or tuple(messages[:before]) != known:
            return 0
        return before + 1 if node.said is not None and node.said.same(fingerprint(messages[before])) else 0

    def _longest(
        self, known: Node | None, kept: int, messages: Sequence[Message], start: bytes, *, tokens: bool
    ) -> Match:
        """The longest match that is at least as long as `known`, whose conversation ends before `messages[kept]`."""
        new = [fingerprint(message) for message in messages[kept:]]
        links = chain(start, new)
        last = links[-1] if links else start
        for at in range(len(new) - 1, -1, -1):
            if new[at].role == "assistant":
                found = self._having(links[at], tokens=tokens)
                if found:
                    return Match(_closest(found, new[at]), kept + at + 1, new[at + 1 :], last)
        if known is not None:
            known = _closest(self._having(start, tokens=tokens), fingerprint(messages[kept - 1]))
        return Match(known, kept, new, last)

    def _having(self, key: bytes, *, tokens: bool) -> list[Node]:
        return [node for node in self._by_key.get(key, ()) if node.has_tokens == tokens]

    def match_text(self, text: str, *, model: str) -> tuple[Node | None, int]:
        """The node of `model` that a raw text prompt extends, and how many of its characters that node covers."""
        best: Node | None = None
        covered = 0
        stack = [(node, 0) for node in self.roots if node.model == model]
        while stack:
            node, start = stack.pop()
            if node.prompt.text is None or node.output.text is None or not node.output.ids:
                continue
            middle = start + len(node.prompt.text)
            if text.startswith(node.prompt.text, start) and text.startswith(node.output.text, middle):
                end = middle + len(node.output.text)
                if best is None or end >= covered:
                    best, covered = node, end
                stack.extend((child, end) for child in node.children)
        return best, covered

    def match_ids(self, packed: bytes, *, model: str) -> tuple[Node | None, int]:
        """The node of `model` whose sequence is the longest start of the packed ids, and how many ids that are."""
        best: Node | None = None
        covered = 0
        stack = [(node, 0) for node in self.roots if node.model == model]
        while stack:
            node, start = stack.pop()
            own = node.prompt.ids + node.output.ids
            if own and packed.startswith(own, start):
                end = start + len(own)
                if best is None or end >= covered:
                    best, covered = node, end
                stack.extend((child, end) for child in node.children)
        return best, covered // 4

    def leaves(self) -> list[Node]:
        """The nodes that no later turn extended, each in the place of the call and the choice that it grew from."""
        places: dict[str, int] = {}
        found = []
        for own_place, node in enumerate(self._nodes.values()):
            parent = node.parent
            grown = parent is not None and parent.children[0] is node
            places[node.id] = places[parent.id] if parent is not None and grown else own_place
            if not node.children:
                found.append(node)
        return sorted(found, key=lambda leaf: places[leaf.id])

    def after(self, node_id: str) -> set[str]:
        """The ids of the nodes that were recorded after this one; of all where it is unknown."""
        ids = [*self._nodes]
        return set(ids[ids.index(node_id) + 1 :]) if node_id in self._nodes else set(ids)

    def branch_reason(
        self,
        parent: Node | None,
        canonical: bytes,
        context: Context,
        new: Sequence[Fingerprint],
        kept: int,
    ) -> str | None:
        """Why a call does not extend a leaf, in words; None where it does, or where it is the first.

        `new` are the fingerprints of the messages after those that the parent covers, which are `kept`.
        """
        siblings = parent.children if parent else self.roots
        if not siblings:
            return None
        if not new:
            return "the prompt goes on differently"
        # A node's siblings stand on the same context, the roots of a session need not.
        same = (node for node in reversed(siblings) if parent is not None or node.canonical == canonical)
        latest = [*islice(same, _MOST_COMPARED)]
        if not latest:
            return self._context_difference(siblings[-1].call.context, context)
        found = (_difference(node, new, kept) for node in reversed(latest))
        return max(found, key=lambda difference: difference[0])[1]

    def _context_difference(self, theirs: Context, ours: Context) -> str:
        if theirs.model != ours.model:
            return f"model differs: {ours.model} after {theirs.model}"
        if self._definitions.same_tools(theirs, ours):
            return "chat_template_kwargs differ"
        return "tools differ"


def _length(after: Node | None) -> int:
    return after.num_messages if after is not None else 0


def _closest(nodes: Sequence[Node], message: Fingerprint) -> Node:
    if message.reasoning:
        for node in reversed(nodes):
            if node.said is not None and node.said.reasoning == message.reasoning:
                return node
    return nodes[-1]


def _difference(node: Node, new: Sequence[Fingerprint], kept: int) -> tuple[int, str]:
    """How many messages agree with a sibling's, and what the first disagreement is."""
    theirs = [*node.fingerprints]
    if not theirs and not node.key:
        return -1, "a raw prompt came before"
    if len(new) > len(theirs) and node.said is not None:
        theirs.append(node.said)
    for at, (mine, other) in enumerate(zip(new, theirs, strict=False)):
        if mine.role != other.role:
            return at, f"messages[{kept + at}].role differs"
        if mine.content != other.content:
            return at, f"messages[{kept + at}].content differs"
        if mine.calls != other.calls:
            return at, f"messages[{kept + at}].tool_calls differ"
    if len(new) < len(theirs):
        return len(new), f"messages end before [{kept + len(new)}]"
    return len(new), "the same messages again"
