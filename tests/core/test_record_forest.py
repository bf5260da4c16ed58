"""A forest against a naive model of its rules: longest match, siblings, one owner for each generated token."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltap import ChatRequest, Message
from rolltap.record import (
    CallRecorded,
    DeliveryChanged,
    Output,
    Prompt,
    SessionCreated,
    SessionInfo,
    decode_entry,
    encode_entry,
    pack_ids,
    pack_logprobs,
    unpack_ids,
)
from rolltap.record import views as record_views
from rolltap.record.fold import SessionRecord
from rolltap.turns.prompts import find_parent


def views(record, **options):
    return record_views.views(record, **{"tree": False, **options})


def shown(node):
    return {
        name: getattr(node, name) for name in ("tokens", "masked_tokens", "logprobs", "metadata", "messages")
    }


class Recorder:
    """Records calls in a forest with ids that are never used twice, and remembers what it recorded."""

    def __init__(self) -> None:
        self.record = SessionRecord()
        self.log = []
        self.apply(SessionCreated(info=SessionInfo(uuid="s", model_name="m")))
        self.conversations: dict[str, tuple[Message, ...]] = {}
        self.sequences: dict[str, list[int]] = {}
        self.generated: dict[str, list[int]] = {}
        self._ids = itertools.count(1)
        self._names = itertools.count(1)

    @property
    def forest(self):
        return self.record.forest

    def apply(self, entry):
        self.log.append(entry)
        return self.record.apply(len(self.log), entry)

    def place(self, messages):
        return find_parent(ChatRequest(messages=tuple(messages)), self.record, model="m", tokens=True)

    def commit(self, messages, answers, at=None, **output):
        """Record a call that was placed `at` (now, if None); return its nodes."""
        at = at or self.place(messages)
        prompt_ids = [next(self._ids) for _ in range(3)]
        before = self.sequences[at.parent.id] if at.parent else []
        outputs = []
        for answer in answers:
            ids = [next(self._ids) for _ in range(2)]
            said = Message(role="assistant", content=answer)
            name = f"n{next(self._names)}"
            outputs.append(
                Output(
                    node_id=name,
                    ids=pack_ids(ids),
                    **{"logprobs": pack_logprobs([-float(i) for i in ids]), **output},
                    message=said,
                )
            )
            self.conversations[name] = (*messages, said)
            self.sequences[name] = [*before, *prompt_ids, *ids]
            self.generated[name] = ids
        nodes = self.apply(
            CallRecorded(
                call_id=f"c{len(self.log)}",
                parent_id=at.parent.id if at.parent else None,
                after_id=at.after.id if at.after else None,
                context=at.context,
                definitions=at.definitions,
                prompt=Prompt(ids=pack_ids(prompt_ids), messages=tuple(messages)[at.kept :]),
                outputs=tuple(outputs),
                backend="b",
            )
        )
        self.forest.remember(nodes[0], messages, at.after, at.kept)
        return nodes


def said(role, text):
    return Message(role=role, content=text)


def ask(*texts):
    """user, assistant, user, …"""
    return [said("assistant" if i % 2 else "user", text) for i, text in enumerate(texts)]


def reasons(recorder):
    return [node.branch_reason for node in recorder.forest]


def test_a_turn_that_goes_on_replaces_its_leaf():
    recorder = Recorder()
    recorder.commit(ask("q1"), ["a1"])
    recorder.commit(ask("q1", "a1", "q2"), ["a2"])
    (leaf,) = views(recorder.record)
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
    assert node.branch_reason == reason
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
        at = find_parent(request, recorder.record, model="m", tokens=True)
        assert at.parent is None
        assert at.branch_reason(recorder.record) == reason
    at = find_parent(ChatRequest(messages=ask("q1", "a1", "q2")), recorder.record, model="other", tokens=True)
    assert (at.parent, at.branch_reason(recorder.record)) == (None, "model differs: other after m")


def test_concurrent_calls_commit_beside_each_other():
    recorder = Recorder()
    recorder.commit(ask("q1"), ["a1"])
    first, second = (recorder.place(ask("q1", "a1", text)) for text in ("x", "y"))
    recorder.commit(ask("q1", "a1", "x"), ["ax"], at=first)
    recorder.commit(ask("q1", "a1", "y"), ["ay"], at=second)
    assert [leaf.id for leaf in recorder.forest.leaves()] == ["n2", "n3"]
    assert recorder.forest["n3"].branch_reason == "messages[2].content differs"


def test_an_ancestors_tokens_go_to_its_first_trainable_leaf():
    recorder = Recorder()
    recorder.commit(ask("q1"), ["a1"])
    recorder.commit(ask("q1", "a1", "x"), ["ax"], untrainable_reason="why not")
    recorder.commit(ask("q1", "a1", "y"), ["ay"])
    first, second = views(recorder.record)
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
    recorder.commit(ask("q1", "a1", "y"), ["ay"], logprobs=None)
    for leaf in views(recorder.record, unmask=True):
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
    recorder.apply(DeliveryChanged(node_ids=["n1"], delivery="aborted"))
    assert views(recorder.record)[0].metadata["delivery"] == "aborted"


def test_ids_find_the_longest_recorded_start():
    recorder = Recorder()
    recorder.commit(ask("q1"), ["a1"])
    recorder.commit(ask("q1", "a1", "q2"), ["a2"])
    recorder.commit(ask("other"), ["b"])
    whole = recorder.sequences["n2"]
    for ids, expected in [([*whole, 9, 9], ("n2", len(whole))), (whole[:-1], ("n1", 5)), ([9, 9], (None, 0))]:
        node, covered = recorder.forest.match_ids(pack_ids(ids), model="m")
        assert (node.id if node else None, covered) == expected
    assert recorder.forest.match_ids(pack_ids(whole), model="other") == (None, 0)


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
        assert (nodes[0].branch_reason is not None) == had_siblings

    for node in recorder.forest:
        assert node.tokens() == recorder.sequences[node.id]
    trained = [t for leaf in views(recorder.record) for t in leaf.masked_tokens if t != -100]
    wanted = [t for node in recorder.forest if node.trainable for t in recorder.generated[node.id]]
    assert sorted(trained) == sorted(wanted)
    of_tree = [t for node in views(recorder.record, tree=True) for t in node.masked_tokens if t != -100]
    assert sorted(of_tree) == sorted(wanted)
    for seen in views(recorder.record, tree=True):
        assert len(seen.tokens) == len(seen.masked_tokens) == len(seen.logprobs) == seen.num_tokens

    folded = SessionRecord()
    for seq, entry in enumerate(recorder.log, 1):
        folded.apply(seq, decode_entry(encode_entry(entry)))
    assert [shown(node) for node in views(folded)] == [shown(node) for node in views(recorder.record)]
    assert folded.digest() == recorder.record.digest()


def test_siblings_share_their_prompt_and_new_tokens_are_all_that_grows():
    recorder = Recorder()
    one, two = recorder.commit(ask("q1"), ["a1", "a2"])
    assert one.prompt.ids is two.prompt.ids
    texts = ["q"]
    for turn in range(50):
        recorder.commit(ask(*texts), [f"a{turn}"])
        texts += [f"a{turn}", "q"]
    assert sum(len(unpack_ids(node.prompt.ids)) for node in recorder.forest) == 3 * 52
