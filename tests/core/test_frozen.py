"""Values that plugins are handed refuse to be changed, and harm nobody."""

import copy
import json
import pickle

import orjson
import pytest

import rolltap
from rolltap import ChatDelta, ChatRequest, Message, Sampling, frozen, thawed
from rolltap.testing import ScriptedTokenBackend

VALUE = {"a": [1, {"b": "c"}], "d": {}}


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.__setitem__("a", 1),
        lambda v: v.__delitem__("a"),
        lambda v: v.update(a=1),
        lambda v: v.setdefault("z", 1),
        lambda v: v.pop("a"),
        lambda v: v.clear(),
        lambda v: v.__ior__({"a": 1}),
        lambda v: v["a"].append(1),
        lambda v: v["a"].__iadd__([1]),
        lambda v: v["a"].sort(),
        lambda v: v["a"].__setitem__(0, 2),
        lambda v: v["a"][1].pop("b"),
    ],
)
def test_every_way_to_change_one_is_refused(change):
    value = frozen(VALUE)
    with pytest.raises(TypeError, match="can't be changed; work on a copy"):
        change(value)
    assert value == VALUE


def test_it_is_a_plain_value_to_everybody_else():
    value = frozen(VALUE)
    assert json.loads(json.dumps(value)) == orjson.loads(orjson.dumps(value)) == VALUE
    assert pickle.loads(pickle.dumps(value)) == VALUE
    for copied in (thawed(value), copy.deepcopy(value)):
        copied["a"][1]["b"] = "changed"
    assert value == VALUE
    assert frozen(value) is value


def test_lists_that_a_request_is_made_with_are_no_way_in():
    messages, stop = [Message(role="user", content="a")], ["x"]
    request = ChatRequest(
        messages=messages, sampling=Sampling(stop=stop), tools=[{"function": {"name": "f"}}]
    )
    messages.clear()
    stop.append("y")
    assert (len(request.messages), request.sampling.stop) == (1, ("x",))
    with pytest.raises(TypeError):
        request.tools[0]["function"]["name"] = "g"
    with pytest.raises(AttributeError):
        request.model = "other"


async def test_a_backend_that_edits_its_request_gets_an_error_and_harms_nobody(rolltap_serve):
    class Editing(rolltap.ChatBackend):
        async def chat(self, request):
            request.messages.append(Message(role="user", content="mine"))
            yield ChatDelta(text="a", finish_reason="stop")

    server = await rolltap_serve(Editing())
    session = await server.session()
    body = {"messages": [{"role": "user", "content": "a"}]}
    status, answer = await server.post(f"/{session}/v1/chat/completions", body)
    assert (status, "'tuple' object has no attribute 'append'" in answer["error"]["message"]) == (500, True)
    assert await server.nodes(session) == []


async def test_a_recorder_that_edits_a_node_is_told_and_changes_nothing(
    rolltap_serve, rolltap_tokenizer, caplog
):
    class Editing:
        @rolltap.hookimpl
        def record_node(self, node):
            node.metadata["trainable"] = False

    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, ["Hi."]), plugins=[Editing()])
    session = await server.session()
    body = {"messages": [{"role": "user", "content": "a"}]}
    assert (await server.post(f"/{session}/v1/chat/completions", body))[0] == 200
    (node,) = await server.nodes(session)
    assert node["metadata"]["trainable"] is True
    assert "can't be changed" in caplog.text
