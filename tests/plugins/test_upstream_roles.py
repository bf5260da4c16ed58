"""System text in the places where upstreams take it."""

import pytest

from rolltap import ChatRequest, ImagePart, Message, TextPart
from rolltap_plugins.openai_backend.options import Options
from rolltap_plugins.upstream.requests import Style, chat_body
from rolltap_plugins.upstream.roles import placed

NAMES = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}


def said(words):
    return [Message(role=NAMES[word[0]], content=word[1:]) for word in words.split()]


def short(messages):
    return " ".join(f"{message.role[0]}{message.text}" for message in messages).replace("\n\n", "+")


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("u1 a2 u3", "u1 a2 u3"),
        ("s1 u2", "s1 u2"),
        ("d1 u2", "s1 u2"),
        ("s1 d2 s3 u4", "s1+2+3 u4"),
        ("s1 u2 s3 u4", "s1 u2+3 u4"),
        ("u1 s2 a3", "u1+2 a3"),
        ("s1 u2 a3 s4 u5", "s1 u2 a3 u4+5"),
        ("s1 u2 a3 t4 s5 a6", "s1 u2 a3 t4 u5 a6"),
        ("s1 u2 a3 s4", "s1 u2 a3 u4"),
        ("u1 a2 d3 d4 u5", "u1 a2 u3+4+5"),
    ],
)
def test_an_upstream_that_demands_system_first_takes_all(given, sent):
    read = placed(said(given), systems="first", developer=False)
    assert short(read) == sent
    assert all(message.role != "system" for message in read[1:])


def test_anywhere_leaves_all_in_place():
    assert short(placed(said("s1 u2 d3 s4"), systems="anywhere", developer=False)) == "s1 u2 s3 s4"
    assert short(placed(said("d1 u2"), systems="first", developer=True)) == "d1 u2"


def test_parts_and_their_marks_stay_parts():
    mark = {"cache_control": {"type": "ephemeral"}}
    messages = [
        Message(role="user", content=[TextPart("a", extra=mark), ImagePart("http://x/y.png")]),
        Message(role="system", content="b"),
    ]
    (message,) = placed(messages, systems="first", developer=False)
    assert message.content == (
        TextPart("a", extra=mark),
        ImagePart("http://x/y.png"),
        TextPart("\n\n"),
        TextPart("b"),
    )


def test_the_default_of_a_style_is_the_careful_one():
    body = chat_body(ChatRequest(messages=said("d1 u2 s3")), "m", Style())
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


@pytest.mark.parametrize(
    ("table", "roles"),
    [
        ({"url": "http://h:1"}, ["system", "user"]),
        ({"url": "http://h:1", "systems": "anywhere"}, ["system", "user", "system"]),
        (
            {"url": "http://h:1", "systems": "anywhere", "developer_role": True},
            ["developer", "user", "system"],
        ),
        ({"url": "https://api.openai.com"}, ["developer", "user", "system"]),
        ({"url": "https://api.openai.com", "developer_role": False}, ["system", "user", "system"]),
    ],
)
def test_options_of_the_openai_backend(table, roles):
    body = chat_body(ChatRequest(messages=said("d1 u2 s3")), "m", Options.read(table, "m").style)
    assert [message["role"] for message in body["messages"]] == roles
