"""How the trees of a session's forest began, for those who say what each of them is."""

from rolltap.record.fold import SessionRecord
from rolltap.record.forest import Node
from rolltap.types.chat import ToolCall
from rolltap.types.nodes import TreeView


def root_of(node: Node) -> Node:
    """The first node of a node's tree."""
    while node.parent is not None:
        node = node.parent
    return node


def tree_view(record: SessionRecord, root: Node) -> TreeView:
    """How the tree below `root` began."""
    calls: list[ToolCall] = []
    for node in record.forest:
        if node is root:
            break
        if node.output.message is not None:
            calls += node.output.message.tool_calls
    return TreeView(
        root_id=root.id,
        first=root is record.forest.roots[0],
        messages=root.prompt.messages,
        tools=record.tools(root),
        model=root.model,
        asked_model=root.call.asked_model,
        client=root.call.client,
        max_tokens=root.call.sampling.get("max_tokens"),
        calls_before=tuple(calls),
    )
