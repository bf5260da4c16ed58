"""The entries of a log: they can't be changed, come back as they were, and outlive versions of their format."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltap import FilePart, FormatError, ImagePart, Message, TextPart, ToolCall
from rolltap.record import (
    FORMAT,
    CallBegun,
    CallFailed,
    CallRecorded,
    Context,
    Definition,
    DeliveryChanged,
    Limits,
    Output,
    Prompt,
    RewardGiven,
    SessionCreated,
    SessionDeleted,
    SessionInfo,
    SessionSealed,
    Times,
    TokenCounts,
    UnknownEntry,
    decode_entry,
    encode_entry,
    pack_ids,
    pack_logprobs,
)
from rolltap.record.fold import SessionRecord

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)
PARTS = (
    st.builds(TextPart, text=TEXT, extra=OBJECTS)
    | st.builds(ImagePart, url=TEXT, extra=OBJECTS)
    | st.builds(FilePart, media_type=TEXT, url=TEXT, name=TEXT, extra=OBJECTS)
)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=st.none() | TEXT | st.lists(PARTS, max_size=2),
    reasoning=st.none() | TEXT,
    tool_calls=st.lists(st.builds(ToolCall, name=TEXT, arguments=TEXT, id=TEXT, extra=OBJECTS), max_size=2),
    extra=OBJECTS,
)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=5)
OUTPUTS = st.builds(
    Output,
    node_id=TEXT,
    ids=IDS.map(pack_ids),
    logprobs=st.none() | st.lists(st.floats(-50, 0), max_size=5).map(pack_logprobs),
    message=st.none() | MESSAGES,
    finish_reason=st.sampled_from(["stop", "length", "tool_calls", "abort", None]),
    untrainable_reason=st.none() | TEXT,
    weight_versions=st.none()
    | st.just(([0, 3, 1], [3, 4, ["a", "b"]])).map(lambda spans: [*map(list, spans)]),
)
ENTRIES = st.one_of(
    st.builds(
        SessionCreated,
        info=st.builds(
            SessionInfo, uuid=TEXT, model_name=TEXT, metadata=OBJECTS, labels=OBJECTS, limits=st.builds(Limits, turns=st.none() | st.integers(1, 9))
        ),
    ),
    st.builds(CallBegun, call_id=TEXT),
    st.builds(CallFailed, call_id=TEXT, reason=TEXT),
    st.builds(
        CallRecorded,
        call_id=TEXT,
        context=st.builds(Context, model=TEXT, tools=st.binary(max_size=4), template_kwargs=st.just(b"")),
        definitions=st.lists(st.builds(Definition, hash=st.binary(max_size=4), value=JSON), max_size=2),
        prompt=st.builds(Prompt, ids=IDS.map(pack_ids), messages=st.lists(MESSAGES, max_size=2).map(tuple)),
        outputs=st.lists(OUTPUTS, max_size=2),
        backend=TEXT,
        sampling=OBJECTS,
        times=st.just(Times(1.0, 2.0, None, 3.0)),
        usage=st.just(TokenCounts(3, 4, None)),
        notes=st.lists(TEXT, max_size=2),
    ),
    st.builds(DeliveryChanged, node_ids=st.lists(TEXT, max_size=2), delivery=st.sampled_from(["delivered", "aborted"])),
    st.builds(RewardGiven, value=st.floats(-9, 9), name=TEXT, node_id=st.none() | TEXT),
    st.builds(SessionSealed, snapshot=TEXT),
    st.just(SessionDeleted()),
)  # fmt: skip


@given(ENTRIES)
def test_entries_come_back_as_they_were(entry):
    data = encode_entry(entry)
    back = decode_entry(data)
    assert type(back) is type(entry)
    assert encode_entry(back) == data


def newer(entry, major=FORMAT[0], minor=FORMAT[1] + 1, **fields):
    """An entry as a later version would write it."""
    body = msgspec.msgpack.decode(msgspec.msgpack.encode(entry)) | fields
    return msgspec.msgpack.encode([major, minor, body])


def test_fields_of_a_newer_minor_version_are_kept():
    data = newer(RewardGiven(value=1.0), currency={"gold": [1, 2]})
    entry = decode_entry(data)
    assert isinstance(entry, RewardGiven)
    assert entry.value == 1.0
    assert encode_entry(entry) == data


def test_an_entry_of_an_unknown_kind_is_kept_and_ignored():
    data = newer(RewardGiven(value=1.0), type="medal")
    entry = decode_entry(data)
    assert isinstance(entry, UnknownEntry)
    assert encode_entry(entry) == data
    record = SessionRecord()
    assert record.apply(1, entry) == []
    assert record.seq == 1


def test_a_newer_major_version_is_refused_by_name():
    data = newer(RewardGiven(value=1.0), major=FORMAT[0] + 1, minor=0)
    with pytest.raises(
        FormatError, match=rf"format {FORMAT[0] + 1}\.0, and this rolltap reads up to {FORMAT[0]}\.x"
    ):
        decode_entry(data)


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"rubbish", msgspec.msgpack.encode([1, 0, {"type": "reward"}])]
)
def test_bytes_that_are_no_entry_are_said_to_be_none(data):
    with pytest.raises(FormatError, match="no entry of rolltap's ledger"):
        decode_entry(data)


def test_an_entry_refuses_changes_all_the_way_down():
    info = SessionInfo(uuid="s", model_name="m", metadata={"a": {"b": [1]}})
    entry = SessionCreated(info=info)
    with pytest.raises(AttributeError):
        entry.info = info
    for change in (
        lambda: info.metadata.update(x=1),
        lambda: info.metadata["a"].pop("b"),
        lambda: info.metadata["a"]["b"].append(2),
    ):
        with pytest.raises(TypeError, match="can't be changed"):
            change()
    assert info.metadata == {"a": {"b": [1]}}
