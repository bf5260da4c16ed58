"""System messages as upstreams take them."""

import pytest

from rolltap import ImagePart, Message, TextPart
from rolltap_plugins.upstream.systems import placed

SYSTEM, DEVELOPER, USER, ASSISTANT, TOOL = (
    Message(role=role, content=text)
    for role, text in [
        ("system", "s"),
        ("developer", "d"),
        ("user", "u"),
        ("assistant", "a"),
        ("tool", "t"),
    ]
)


def said(messages, systems="first", developer=False):
    return [(one.role, one.content) for one in placed(messages, systems, developer=developer)]


@pytest.mark.parametrize(
    ("messages", "sent"),
    [
        ([USER], [("user", "u")]),
        ([SYSTEM, USER], [("system", "s"), ("user", "u")]),
        ([DEVELOPER, USER], [("system", "d"), ("user", "u")]),
        ([SYSTEM, DEVELOPER, USER], [("system", "s\n\nd"), ("user", "u")]),
        ([USER, SYSTEM, USER], [("user", "u\n\ns"), ("user", "u")]),
        ([USER, ASSISTANT, SYSTEM, USER], [("user", "u"), ("assistant", "a"), ("user", "s\n\nu")]),
        ([USER, ASSISTANT, TOOL, SYSTEM], [("user", "u"), ("assistant", "a"), ("tool", "t"), ("user", "s")]),
        (
            [USER, ASSISTANT, SYSTEM, ASSISTANT],
            [("user", "u"), ("assistant", "a"), ("user", "s"), ("assistant", "a")],
        ),
        ([SYSTEM], [("system", "s")]),
        ([], []),
    ],
)
def test_one_in_front(messages, sent):
    assert said(messages) == sent


def test_anywhere_is_as_it_was_sent():
    messages = [SYSTEM, DEVELOPER, USER, SYSTEM, ASSISTANT]
    assert placed(messages, "anywhere", developer=True) == messages
    assert [role for role, _ in said(messages, "anywhere")] == [
        "system",
        "system",
        "user",
        "system",
        "assistant",
    ]


def test_parts_keep_what_stands_beside_them():
    cached = TextPart("s", extra={"cache_control": {"type": "ephemeral"}})
    image = ImagePart("data:image/png;base64,AA==")
    messages = [
        Message(role="system", content=(cached,)),
        DEVELOPER,
        Message(role="user", content=(image,)),
        SYSTEM,
    ]
    assert said(messages) == [
        ("system", (cached, TextPart("d"))),
        ("user", (image, TextPart("s"))),
    ]
