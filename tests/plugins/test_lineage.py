"""Each tree of a session is labelled by how it began."""

import json

import pytest

from rolltap import Message, ToolCall, TreeView
from rolltap.testing import ScriptedTokenBackend
from rolltap_plugins.lineage import label_tree

TOOLS = ({"type": "function", "function": {"name": "Task"}},)
TASK = "Find every place that opens a file, and list them."


def tree(*messages, first=False, tools=TOOLS, **fields):
    said = tuple(Message(role=role, content=text) for role, text in messages)
    return TreeView(root_id="n", first=first, messages=said, tools=tools, **fields)


def call(**arguments):
    return ToolCall(name="Task", arguments=json.dumps(arguments))


@pytest.mark.parametrize(
    ("seen", "label"),
    [
        (tree(("user", "Fix the bug."), first=True), "main"),
        (tree(("user", "Fix the bug."), first=True, tools=()), "main"),
        (tree(("user", TASK), calls_before=(call(prompt=TASK),)), "sub-agent"),
        (tree(("user", f"<context/>\n{TASK}"), calls_before=(call(prompt=TASK),)), "sub-agent"),
        (tree(("user", "Look."), calls_before=(call(prompt="Look."),)), "main"),  # too short to be told by
        (
            tree(("system", "Write a title of at most 50 characters."), ("user", "Fix it."), tools=()),
            "title",
        ),
        (
            tree(("user", "This session is being continued from a previous conversation that ran out.")),
            "compaction",
        ),
        (tree(("user", "quota"), tools=(), max_tokens=1), "other"),
        (tree(("user", "hello"), tools=()), "other"),
    ],
)
def test_labels(seen, label):
    assert label_tree(seen) == label


@pytest.mark.parametrize("arguments", ["{", "[1, 2]", '"x"', "{}", '{"prompt": null}'])
def test_arguments_of_any_shape_are_no_reason_to_fail(arguments):
    seen = tree(("user", TASK), calls_before=(ToolCall(name="f", arguments=arguments),))
    assert label_tree(seen) in {"main", "other"}


async def test_a_rollout_with_a_sub_agent_is_selected_by_label(rolltap_serve, rolltap_tokenizer):
    wanted = json.dumps({"name": "Task", "arguments": {"prompt": TASK}})
    asks = f"<tool_call>\n{wanted}\n</tool_call>"
    backend = ScriptedTokenBackend(rolltap_tokenizer, [asks, "main.py", "Done."])
    server = await rolltap_serve(backend)
    session = await server.session()
    tools = [{"type": "function", "function": {"name": "Task", "parameters": {"type": "object"}}}]
    path, history = f"/{session}/v1/chat/completions", [{"role": "user", "content": "Fix the bug."}]
    _, answer = await server.post(path, {"messages": history, "tools": tools})
    message = answer["choices"][0]["message"]
    await server.post(path, {"messages": [{"role": "user", "content": TASK}]})
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "main.py"}
    await server.post(path, {"messages": [*history, message, result], "tools": tools})
    labels = [node["metadata"]["lineage"] for node in await server.nodes(session)]
    assert labels == ["main", "sub-agent"]
    (main,) = await server.nodes(session, lineage="main")
    assert main["full_text"].count("Done.") == 1
    async with server.http.get(
        f"/{session}/nodes", params={"format": "jsonl", "lineage": "sub-agent"}
    ) as response:
        (row,) = (await response.json())["rows"]
    assert row["lineage"] == "sub-agent"
