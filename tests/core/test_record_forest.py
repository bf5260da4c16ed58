"""A forest against a naive model of its rules: longest match, siblings, one owner for each generated token."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltap import ChatRequest, Message
from rolltap.record import canonical
from rolltap.record.forest import Forest
from rolltap.record.views import views
from rolltap.turns.prompts import place
from rolltap.types.record import (
    DeliveryChanged,
    NodesRecorded,
    Output,
    Prompt,
    decode_entry,
    encode_entry,
    pack_ids,
    pack_logprobs,
    unpack_ids,
)


class Recorder:
    """Records calls in a forest with ids that are never used twice, and remembers what it recorded."""

    def __init__(self) -> None:
        self.forest = Forest()
        self.log = []
        self.conversations: dict[str, tuple[Message, ...]] = {}
        self.sequences: dict[str, list[int]] = {}
        self.generated: dict[str, list[int]] = {}
        self._ids = itertools.count(1)
        self._names = itertools.count(1)

    def place(self, messages):
        return place(ChatRequest(messages=list(messages)), self.forest, model="m", tokens=True)

    def commit(self, messages, answers, at=None, **output):
        """Record a call that was placed `at` (now, if None); return its nodes."""
        at = at or self.place(messages)
        prompt_ids = [next(self._ids) for _ in range(3)]
        before = self.sequences[at.parent.id] if at.parent else []
        outputs = []
        for answer in answers:
            ids = [next(self._ids) for _ in range(2)]
            said = Message(role="assistant", content=answer)
            message = canonical.fingerprint(said)
            name = f"n{next(self._names)}"
            outputs.append(
                Output(
                    node_id=name,
                    ids=pack_ids(ids),
                    logprobs=pack_logprobs([-float(i) for i in ids]),
                    message=message,
                    key=canonical.chain_next(at.link, message),
                    **output,
                )
            )
            self.conversations[name] = (*messages, said)
            self.sequences[name] = [*before, *prompt_ids, *ids]
            self.generated[name] = ids
        entry = NodesRecorded(
            parent_id=at.parent.id if at.parent else None,
            context=at.context,
            prompt=Prompt(ids=pack_ids(prompt_ids), messages=at.new),
            outputs=outputs,
            branch_reason=at.branch_reason(self.forest),
            backend="b",
            model="m",
            created_at=0.0,
        )
        self.log.append(entry)
        return self.forest.apply(entry)


def said(role, text):
    return Message(role=role, content=text)


def ask(*texts):
    """user, assistant, user, …"""
    return [said("assistant" if i % 2 else "user", text) for i, text in enumerate(texts)]


def reasons(recorder):
    return [node.call.branch_reason for node in recorder.forest]


def test_a_turn_that_goes_on_replaces_its_leaf():
    recorder = Recorder()
    recorder.commit(ask("q1"), ["a1"])
    recorder.commit(ask("q1", "a1", "q2"), ["a2"])
    (leaf,) = views(recorder.forest, tree=False)
    assert leaf.tokens == recorder.sequences["n2"]
    assert leaf.masked_tokens == [-100] * 3 + recorder.generated["n1"] + [-100] * 3 + recorder.generated["n2"]
    assert leaf.logprobs[:3] == [1.0] * 3
    assert leaf.logprobs[3:5] == [-float(i) for i in recorder.generated["n1"]]
    assert reasons(recorder) == [None, None]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (ask("q1", "a1", "other"), "messages[2].content differs"),
        (ask("q1", "a1", "q2", "other", "q3"), "messages[3].content differs"),
        (ask("q1", "a1", "q2"), "the same messages again"),
        (ask("other"), "messages[0].content differs"),
        (ask("q1", "other", "q2"), "messages[1].content differs"),
        ([said("system", "s"), *ask("q1")], "messages[0].role differs"),
        ([*ask("q1", "a1"), said("tool", "t")], "messages[2].role differs"),
    ],
)
def test_a_branch_says_why(messages, reason):
    recorder = Recorder()
    recorder.commit(ask("q1"), ["a1"])
    recorder.commit(ask("q1", "a1", "q2"), ["a2"])
    (node,) = recorder.commit(messages, ["b"])
    assert node.call.branch_reason == reason
    assert len(recorder.forest.leaves()) == 2


def test_what_a_conversation_stands_on_makes_another_tree():
    recorder = Recorder()
    recorder.commit(ask("q1"), ["a1"])
    tools = [{"type": "function", "function": {"name": "f"}}]
    for request, reason in [
        (ChatRequest(messages=ask("q1", "a1", "q2"), tools=tools), "tools differ"),
        (
            ChatRequest(messages=ask("q1", "a1", "q2"), template_kwargs={"x": 1}),
            "chat_template_kwargs differ",
        ),
    ]:
        at = place(request, recorder.forest, model="m", tokens=True)
        assert at.parent is None
        assert at.branch_reason(recorder.forest) == reason
    at = place(ChatRequest(messages=ask("q1", "a1", "q2")), recorder.forest, model="other", tokens=True)
    assert (at.parent, at.branch_reason(recorder.forest)) == (None, "model differs: other after m")


def test_concurrent_calls_commit_beside_each_other():
    recorder = Recorder()
    recorder.commit(ask("q1"), ["a1"])
    first, second = (recorder.place(ask("q1", "a1", text)) for text in ("x", "y"))
    recorder.commit(ask("q1", "a1", "x"), ["ax"], at=first)
    recorder.commit(ask("q1", "a1", "y"), ["ay"], at=second)
    assert [leaf.id for leaf in recorder.forest.leaves()] == ["n2", "n3"]
    assert recorder.forest["n3"].call.branch_reason == "messages[2].content differs"


def test_an_ancestors_tokens_go_to_its_first_trainable_leaf():
    recorder = Recorder()
    recorder.commit(ask("q1"), ["a1"])
    recorder.commit(ask("q1", "a1", "x"), ["ax"], untrainable_reason="why not")
    recorder.commit(ask("q1", "a1", "y"), ["ay"])
    first, second = views(recorder.forest, tree=False)
    assert set(first.masked_tokens) == {-100}
    assert [token for token in second.masked_tokens if token != -100] == [
        *recorder.generated["n1"],
        *recorder.generated["n3"],
    ]
    assert (first.metadata["trainable"], first.metadata["untrainable_reason"]) == (False, "why not")
    assert (first.metadata["num_trainable"], second.metadata["num_trainable"]) == (0, 4)


def test_unmasked_shows_every_generated_token_and_no_made_up_logprob():
    recorder = Recorder()
    recorder.commit(ask("q1"), ["a1"])
    recorder.commit(ask("q1", "a1", "x"), ["ax"])
    recorder.commit(ask("q1", "a1", "y"), ["ay"])
    recorder.forest["n3"].output.logprobs = None
    for leaf in views(recorder.forest, tree=False, unmask=True):
        assert len([token for token in leaf.masked_tokens if token != -100]) == 4
    assert leaf.logprobs[-2:] == [None, None]


def test_the_thinking_that_came_back_tells_equal_answers_apart():
    recorder = Recorder()
    nodes = recorder.commit(ask("q1"), ["<think>one</think>a", "<think>two</think>a"])
    for thought, node in zip(["one", "two"], nodes, strict=True):
        back = Message(role="assistant", content="a", reasoning=thought)
        assert recorder.place([*ask("q1"), back, said("user", "q2")]).parent is node
    assert recorder.place(ask("q1", "a", "q2")).parent is nodes[-1]


def test_delivery_changes():
    recorder = Recorder()
    recorder.commit(ask("q1"), ["a1"])
    recorder.forest.apply(DeliveryChanged(["n1"], "aborted"))
    assert views(recorder.forest, tree=False)[0].metadata["delivery"] == "aborted"


def test_ids_find_the_longest_recorded_start():
    recorder = Recorder()
    recorder.commit(ask("q1"), ["a1"])
    recorder.commit(ask("q1", "a1", "q2"), ["a2"])
    recorder.commit(ask("other"), ["b"])
    whole = recorder.sequences["n2"]
    for ids, expected in [([*whole, 9, 9], ("n2", len(whole))), (whole[:-1], ("n1", 5)), ([9, 9], (None, 0))]:
        node, covered = recorder.forest.match_ids(ids, model="m")
        assert (node.id if node else None, covered) == expected
    assert recorder.forest.match_ids(whole, model="other") == (None, 0)


WORDS = st.sampled_from("abc")


@given(st.data())
def test_random_forests_follow_the_rules(data):
    recorder = Recorder()
    for _ in range(data.draw(st.integers(1, 12))):
        known = [(), *recorder.conversations.values()]
        start = data.draw(st.sampled_from(known))
        cut = data.draw(st.integers(0, len(start)))
        new = [said("user", data.draw(WORDS)) for _ in range(data.draw(st.integers(1, 2)))]
        messages = [*start[:cut], *new]
        at = recorder.place(messages)

        texts = [(m.role, m.text) for m in messages]
        matching = [
            name
            for name, told in recorder.conversations.items()
            if [(m.role, m.text) for m in told] == texts[: len(told)]
        ]
        longest = max((len(recorder.conversations[name]) for name in matching), default=0)
        assert at.kept == longest
        if longest:
            assert at.parent is not None
            assert at.parent.id in [n for n in matching if len(recorder.conversations[n]) == longest]
        had_siblings = bool(at.parent.children if at.parent else recorder.forest.roots)
        trainable = data.draw(st.booleans())
        nodes = recorder.commit(
            messages,
            data.draw(st.lists(WORDS, min_size=1, max_size=3)),
            at=at,
            untrainable_reason=None if trainable else "no",
        )
        assert (nodes[0].call.branch_reason is not None) == had_siblings

    for node in recorder.forest:
        assert node.tokens() == recorder.sequences[node.id]
    trained = [t for leaf in views(recorder.forest, tree=False) for t in leaf.masked_tokens if t != -100]
    wanted = [t for node in recorder.forest if node.trainable for t in recorder.generated[node.id]]
    assert sorted(trained) == sorted(wanted)
    of_tree = [t for node in views(recorder.forest, tree=True) for t in node.masked_tokens if t != -100]
    assert sorted(of_tree) == sorted(wanted)
    for seen in views(recorder.forest, tree=True):
        assert len(seen.tokens) == len(seen.masked_tokens) == len(seen.logprobs) == seen.num_tokens

    folded = Forest()
    for entry in recorder.log:
        folded.apply(decode_entry(encode_entry(entry)))
    assert [n.to_dict() for n in views(folded, tree=False)] == [
        n.to_dict() for n in views(recorder.forest, tree=False)
    ]


def test_siblings_share_their_prompt_and_new_tokens_are_all_that_grows():
    recorder = Recorder()
    one, two = recorder.commit(ask("q1"), ["a1", "a2"])
    assert one.prompt.ids is two.prompt.ids
    texts = ["q"]
    for turn in range(50):
        recorder.commit(ask(*texts), [f"a{turn}"])
        texts += [f"a{turn}", "q"]
    assert sum(len(unpack_ids(node.prompt.ids)) for node in recorder.forest) == 3 * 52
