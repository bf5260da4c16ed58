"""The forest of a session: the fold of its log.

A node is one completion: a prompt part (what the call added, not generated) and an output part (generated), below the
node that the call extended. Only what is new is kept, so memory grows with new tokens, not with turns times length.
"""

from collections.abc import Iterator, Sequence
from itertools import chain as concat
from itertools import islice

from rolltap.types.record import (
    Context,
    DeliveryChanged,
    Entry,
    Fingerprint,
    NodesRecorded,
    Output,
    Prompt,
    ReplyKept,
    SessionCreated,
    SessionDeleted,
    unpack_ids,
)

_MOST_COMPARED = 16
"""How many siblings, the latest, a new node is compared with to say why it is none of them: sessions that ask
thousands of unrelated questions must not become slow."""


class Node:
    """A completion in its tree. `call` and its prompt are shared by the siblings that one call made."""

    __slots__ = ("call", "children", "output", "parent")

    def __init__(self, call: NodesRecorded, output: Output, parent: "Node | None") -> None:
        self.call = call
        self.output = output
        self.parent = parent
        self.children: list[Node] = []

    @property
    def id(self) -> str:
        """Unique in the session."""
        return self.output.node_id

    @property
    def prompt(self) -> Prompt:
        """What the call added after the parent."""
        return self.call.prompt

    @property
    def trainable(self) -> bool:
        """Whether the output may be trained on."""
        return self.output.untrainable_reason is None

    @property
    def has_tokens(self) -> bool:
        """Whether the sequence is known as ids; nodes of text-only backends are not."""
        return bool(self.prompt.ids or self.output.ids)

    def path(self) -> "list[Node]":
        """The nodes from the root to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def tokens(self) -> list[int]:
        """The ids of the whole sequence, from the root's first to this output's last."""
        return list(
            concat.from_iterable(
                concat(unpack_ids(node.prompt.ids), unpack_ids(node.output.ids)) for node in self.path()
            )
        )

    def last_id(self) -> int | None:
        """The sequence's last id; None for a text-only node."""
        ids = self.output.ids or self.prompt.ids
        return unpack_ids(ids[-4:])[0] if ids else None


class Forest:
    """All trees of one session."""

    def __init__(self) -> None:
        self.roots: list[Node] = []
        self._nodes: dict[str, Node] = {}
        self._by_key: dict[bytes, list[Node]] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        """The nodes in the order they were recorded."""
        return iter(self._nodes.values())

    def __getitem__(self, node_id: str) -> Node:
        return self._nodes[node_id]

    def apply(self, entry: Entry) -> list[Node]:
        """Take one entry of the log; return the nodes it added."""
        match entry:
            case NodesRecorded():
                return [self._add(entry, output) for output in entry.outputs]
            case DeliveryChanged():
                for node_id in entry.node_ids:
                    self._nodes[node_id].output.delivery = entry.delivery
            case SessionCreated() | ReplyKept() | SessionDeleted():
                pass
        return []

    def _add(self, call: NodesRecorded, output: Output) -> Node:
        parent = self._nodes[call.parent_id] if call.parent_id is not None else None
        node = Node(call, output, parent)
        (parent.children if parent else self.roots).append(node)
        self._nodes[node.id] = node
        if output.key:
            self._by_key.setdefault(output.key, []).append(node)
        return node

    def match(
        self, links: Sequence[bytes], messages: Sequence[Fingerprint], *, tokens: bool
    ) -> tuple[Node | None, int]:
        """The node that a request extends, and how many of its messages that node covers.

        The longest match over all nodes wins. `links` is the request's hash chain; `tokens` says whether the
        node's sequence must be known as ids. Where outputs differ in nothing but their thinking, the one whose
        thinking the client sent back is taken, else the latest.
        """
        for last in range(len(messages) - 1, -1, -1):
            if messages[last].role != "assistant":
                continue
            found = [node for node in self._by_key.get(links[last], ()) if node.has_tokens == tokens]
            if found:
                return _closest(found, messages[last]), last + 1
        return None, 0

    def match_text(self, text: str, *, model: str) -> tuple[Node | None, int]:
        """The node of `model` that a raw text prompt extends, and how many of its characters that node covers."""
        best: Node | None = None
        covered = 0
        stack = [(node, 0) for node in self.roots if node.call.model == model]
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

    def match_ids(self, ids: Sequence[int], *, model: str) -> tuple[Node | None, int]:
        """The node of `model` whose sequence is the longest start of `ids`, and that sequence's length."""
        best: Node | None = None
        covered = 0
        stack = [(node, 0) for node in self.roots if node.call.model == model]
        while stack:
            node, start = stack.pop()
            own = [*unpack_ids(node.prompt.ids), *unpack_ids(node.output.ids)]
            if own and list(ids[start : start + len(own)]) == own:
                end = start + len(own)
                if best is None or end >= covered:
                    best, covered = node, end
                stack.extend((child, end) for child in node.children)
        return best, covered

    def leaves(self) -> list[Node]:
        """The nodes that no later turn extended, in the order they were recorded."""
        return [node for node in self if not node.children]


def _closest(nodes: Sequence[Node], message: Fingerprint) -> Node:
    if message.reasoning:
        for node in reversed(nodes):
            if node.output.message is not None and node.output.message.reasoning == message.reasoning:
                return node
    return nodes[-1]


def branch_reason(
    forest: Forest, parent: Node | None, context: Context, new: Sequence[Fingerprint], kept: int
) -> str | None:
    """Why a call did not extend a leaf, in words; None where it did, or where it is the first.

    `new` are the fingerprints of the messages after `parent`, the first of them numbered `kept`.
    """
    siblings = parent.children if parent else forest.roots
    if not siblings:
        return None
    # A node's siblings stand on the same context, the roots of a session need not.
    same = (node for node in reversed(siblings) if parent is not None or node.call.context == context)
    latest = [*islice(same, _MOST_COMPARED)]
    if not latest:
        return _context_difference(siblings[-1].call.context, context)
    found = (_difference(node, new, kept) for node in reversed(latest))
    return max(found, key=lambda difference: difference[0])[1]


def _context_difference(theirs: Context, ours: Context) -> str:
    if theirs.model != ours.model:
        return f"model differs: {ours.model} after {theirs.model}"
    return "tools differ" if theirs.tools != ours.tools else "chat_template_kwargs differ"


def _difference(node: Node, new: Sequence[Fingerprint], kept: int) -> tuple[int, str]:
    """How many messages agree with a sibling's, and what the first disagreement is."""
    theirs = [*node.prompt.messages]
    if new and not theirs and not node.output.key:
        return -1, "a raw prompt came before"
    if len(new) > len(theirs) and node.output.message is not None:
        theirs.append(node.output.message)
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
