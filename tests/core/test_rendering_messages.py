"""Messages as templates take them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltap.errors import BadRequest
from rolltap.rendering.messages import as_dict, call_id, check_content, name_calls, place_systems
from rolltap.rendering.template_capabilities import TemplateCapabilities
from rolltap.types.chat import ImagePart, Message, TextPart, ToolCall

DICTS = TemplateCapabilities()
TEXTS = TemplateCapabilities(dict_arguments=False, text_arguments=True)
FIRST = TemplateCapabilities(systems="first")
NOWHERE = TemplateCapabilities(systems="nowhere")


def said(*pairs):
    names = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}
    return [Message(role=names[pair[0]], content=pair[1:]) for pair in pairs]


def short(messages):
    return [f"{message.role[0]}{message.text}" for message in messages]


def arguments(text, form):
    message = as_dict(Message(role="assistant", tool_calls=[ToolCall(name="f", arguments=text)]), form)
    return message["tool_calls"][0]["function"]["arguments"]


def test_a_plain_message_has_no_keys_without_a_value():
    assert as_dict(Message(role="user", content="Hi"), DICTS) == {"role": "user", "content": "Hi"}
    assert as_dict(Message(role="assistant"), DICTS) == {"role": "assistant", "content": ""}


def test_text_parts_are_joined():
    message = Message(role="user", content=[TextPart("a"), TextPart("b")])
    assert as_dict(message, DICTS)["content"] == "ab"


def test_calls_and_results():
    call = ToolCall(name="f", arguments='{"a": 1}', id="c1")
    assert as_dict(Message(role="assistant", tool_calls=[call]), DICTS) == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
    }
    result = Message(role="tool", content="1", tool_call_id="c1", name="f")
    assert as_dict(result, DICTS) == {"role": "tool", "content": "1", "tool_call_id": "c1", "name": "f"}


def test_reasoning_has_the_names_that_templates_read():
    message = as_dict(Message(role="assistant", content="x", reasoning="y"), DICTS)
    assert (message["reasoning_content"], message["thinking"]) == ("y", "y")
    assert "reasoning_content" not in as_dict(Message(role="user", content="x", reasoning="y"), DICTS)


def test_a_template_that_refuses_text_beside_thinking_and_calls_is_given_both_as_thinking():
    form = TemplateCapabilities(text_with_calls_and_reasoning=False)
    message = as_dict(
        Message(role="assistant", content="Let me see.", reasoning="Hm.", tool_calls=[ToolCall(name="f")]),
        form,
    )
    assert (message["content"], message["thinking"]) == (None, "Hm.\n\nLet me see.")


@pytest.mark.parametrize("text", ["", "{}"])
def test_no_arguments(text):
    assert arguments(text, DICTS) == {}


@pytest.mark.parametrize("text", ['{"a": ', "[1]", '"x"', "null", "nonsense", "[" * 100_000])
def test_arguments_that_are_no_object_are_shown_as_they_are(text):
    assert arguments(text, DICTS) == {"arguments": text}
    assert arguments(text, TemplateCapabilities(text_arguments=True)) == text
    assert arguments(text, TEXTS) == text


def test_text_arguments_are_the_models_own():
    assert arguments('{"a":1}', TEXTS) == '{"a":1}'


def test_developers_are_systems_where_the_template_knows_none():
    message = Message(role="developer", content="x")
    assert as_dict(message, DICTS)["role"] == "system"
    assert as_dict(message, TemplateCapabilities(developer=True))["role"] == "developer"


def test_systems_stay_where_the_template_shows_them():
    messages = said("s1", "u2", "s3", "a4")
    assert place_systems(messages, DICTS) == messages


@pytest.mark.parametrize(
    ("form", "messages", "expected"),
    [
        (FIRST, ["s1", "u2", "a3"], ["s1", "u2", "a3"]),
        (FIRST, ["s1", "d2", "u3"], ["s1\n\n2", "u3"]),
        (FIRST, ["s1", "u2", "s3", "a4"], ["s1", "u2\n\n3", "a4"]),
        (FIRST, ["u1", "a2", "s3", "u4"], ["u1", "a2", "u3\n\n4"]),
        (FIRST, ["u1", "a2", "s3", "t4", "s5"], ["u1", "a2", "t4", "u3\n\n5"]),
        (FIRST, ["u1", "a2", "s3", "a4"], ["u1", "a2", "u3", "a4"]),
        (NOWHERE, ["s1", "s2", "u3", "a4"], ["u1\n\n2\n\n3", "a4"]),
        (NOWHERE, ["s1"], ["u1"]),
        (NOWHERE, ["u1", "a2"], ["u1", "a2"]),
    ],
)
def test_systems_elsewhere_are_shown_as_the_users(form, messages, expected):
    assert short(place_systems(said(*messages), form)) == expected


@given(st.lists(st.sampled_from(["s.", "d.", "u.", "a.", "t."])), st.sampled_from([FIRST, NOWHERE]))
def test_placing_loses_nothing_and_moves_nothing_over_an_assistant(kinds, form):
    messages = said(*(f"{kind[0]}{index}." for index, kind in enumerate(kinds)))
    placed = place_systems(messages, form)

    def turns(ones):
        parts = [[]]
        for one in ones:
            parts[-1] += one.text.replace(".", " ").split()
            if one.role == "assistant":
                parts.append([])
        return [sorted(part) for part in parts]

    assert turns(placed) == turns(messages)
    allowed = placed[1:] if form is FIRST else placed
    assert not {one.role for one in allowed} & {"system", "developer"}
    for index, message in enumerate(messages):
        if message.role == "assistant" and form is NOWHERE:
            parts = [*place_systems(messages[: index + 1], form), *place_systems(messages[index + 1 :], form)]
            assert short(parts) == short(placed)


@given(st.text(max_size=30))
def test_short_ids(identifier):
    form = TemplateCapabilities(short_call_ids=True)
    made = call_id(identifier, form)
    assert len(made) == 9
    assert made.isascii()
    assert made.isalnum()
    assert call_id(made, form) == made
    assert call_id(identifier, DICTS) == identifier


def test_images_are_refused_by_their_place():
    messages = [
        Message(role="user", content="a"),
        Message(role="user", content=[ImagePart("http://x/y.png")]),
    ]
    with pytest.raises(BadRequest, match="image parts") as caught:
        check_content(messages)
    assert caught.value.info.param == "messages[1].content"


def test_no_messages_are_refused():
    with pytest.raises(BadRequest, match="messages must not be empty"):
        check_content([])


def test_calls_are_shown_by_ids_that_name_the_tool_where_a_template_shows_nothing_else():
    conversation = [
        Message(role="assistant", tool_calls=[ToolCall("f", id="call_x"), ToolCall("g", id="functions.g:7")]),
        Message(role="tool", content="a", tool_call_id="call_x"),
        Message(role="tool", content="b", tool_call_id="functions.g:7"),
        Message(role="tool", content="c", tool_call_id="lost"),
        Message(role="assistant", tool_calls=[ToolCall("f", id="g:1")]),
    ]
    assert name_calls(conversation, DICTS) is conversation
    named = name_calls(conversation, TemplateCapabilities(named_call_ids=True))
    assert [[call.id for call in message.tool_calls] or message.tool_call_id for message in named] == [
        ["functions.f:0", "functions.g:7"], "functions.f:0", "functions.g:7", "lost", ["functions.f:2"]
    ]  # fmt: skip
    assert conversation[0].tool_calls[0].id == "call_x"
