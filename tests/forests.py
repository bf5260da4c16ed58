"""Random sessions of recorded calls, as real views: what exports are tested with."""

from hypothesis import strategies as st

from rolltap import ImagePart, Message, SessionSummary, TextPart, ToolCall
from rolltap.record import CallRecorded, Context, Output, Prompt, Times, pack_ids, pack_logprobs
from rolltap.record.fold import SessionRecord
from rolltap.record.views import views


def summary(**settings):
    """A session, as formats see it."""
    return SessionSummary(**{"uuid": "s1", "model_name": "m", "group": "g", **settings})


def call(name, parent, prompt, outputs, *, sampling=None, messages=()):
    """An entry of a call; `outputs` are (ids, logprobs, further fields)."""
    return CallRecorded(
        call_id=name,
        parent_id=parent,
        after_id=parent,
        context=Context("m"),
        prompt=Prompt(ids=pack_ids(prompt), messages=tuple(messages)),
        outputs=tuple(
            Output(
                node_id=f"{name}.{number}",
                ids=pack_ids(ids),
                logprobs=None if logprobs is None else pack_logprobs(logprobs),
                **{"finish_reason": "stop", **more},
            )
            for number, (ids, logprobs, more) in enumerate(outputs)
        ),
        backend="b",
        sampling=sampling or {},
        times=Times(ended=1.0),
    )


def forest_of(*entries):
    """The record that these entries fold to."""
    record = SessionRecord()
    for number, entry in enumerate(entries, 1):
        record.apply(number, entry)
    return record


ids = st.lists(st.integers(0, 2**31 - 1), max_size=4)
logprobs = st.floats(max_value=0.0, allow_nan=False, allow_infinity=False)


@st.composite
def outputs(draw):
    generated = draw(ids.filter(bool))
    exact = draw(st.booleans() | st.just(True))
    if not exact:
        return generated, draw(st.none() | st.just([-1.0] * len(generated))), {"untrainable_reason": "odd"}
    cut = draw(st.integers(0, len(generated)))
    versions = [[0, cut, "7"], [cut, len(generated), "8"]] if draw(st.booleans()) else None
    given = draw(st.lists(logprobs, min_size=len(generated), max_size=len(generated)))
    reason = draw(st.sampled_from(["stop", "length", "tool_calls", "abort"]))
    return generated, given, {"weight_versions": versions, "finish_reason": reason}


@st.composite
def forests(draw):
    """A forest of up to ten calls: new trees, turns that go on, branches, n > 1, inexact outputs."""
    entries, names = [], [None]
    for number in range(draw(st.integers(1, 10))):
        made = draw(st.lists(outputs(), min_size=1, max_size=3))
        sampling = draw(st.sampled_from([{}, {"temperature": 0.5}]))
        entries.append(call(f"n{number}", draw(st.sampled_from(names)), draw(ids), made, sampling=sampling))
        names += [output.node_id for output in entries[-1].outputs]
    return forest_of(*entries)


def leaves(record, **options):
    """The record's exported sequences."""
    return views(record, tree=False, **options)


class RewardedNode:
    """A node as it is, with a reward."""

    def __init__(self, node, reward):
        self._node = node
        self._reward = reward

    def __getattr__(self, name):
        return getattr(self._node, name)

    @property
    def reward(self):
        return self._reward

    @property
    def rewards(self):
        return {"reward": self._reward}


SEARCH = Message(
    role="assistant",
    reasoning="Look it up.",
    tool_calls=(
        ToolCall(name="search", arguments='{"q": "rolltap"}', id="c1"),
        ToolCall(name="odd", arguments="[1]", id="c2"),
    ),
)
CONVERSATION = [
    call(
        "x",
        None,
        [1, 2],
        [([3], [-0.5], {"message": SEARCH})],
        messages=[
            Message(role="system", content="Be brief."),
            Message(role="assistant", content="An example that nobody generated."),
            Message(
                role="user",
                content=(TextPart(text="What is it?"), ImagePart(url="data:image/gif;base64,R0lG")),
            ),
        ],
    ),
    call(
        "y",
        "x.0",
        [4],
        [([5], [-1.0], {"message": Message(role="assistant", content="A middleware.")})],
        messages=[
            Message(role="tool", content="rolltap: …", tool_call_id="c1"),
            Message(role="tool", content="Nobody asked.", tool_call_id="c9"),
        ],
    ),
]
"""A conversation with a tool, an image, an example that nobody generated, and an answer to a call that was not made."""
