"""Images, documents and recordings in rollouts: models of text alone read words in their place, and the node says so."""

import base64
from typing import Any

import pytest

from rolltap.testing import ScriptedTokenBackend, assert_exact
from rolltap.turns.attachments import in_words
from rolltap.types.chat import FilePart, ImagePart, Message, TextPart

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="
IMAGE = f"data:image/png;base64,{PNG}"
PDF = "data:application/pdf;base64,JVBERi0xLjQKJSVFT0YK"
SEEN = "[image/png, 70 bytes: this model reads text only]"


def words(*parts):
    return in_words([Message(role="user", content=parts)]).messages[0].content


@pytest.mark.parametrize(
    ("part", "read"),
    [
        (ImagePart(IMAGE), SEEN),
        (ImagePart("https://x.test/a.png"), "[image, https://x.test/a.png: this model reads text only]"),
        (ImagePart("data:image/svg+xml,%3Csvg/%3E"), "[image/svg+xml, 6 bytes: this model reads text only]"),
        (
            FilePart(media_type="application/pdf", url=PDF, name="b.pdf"),
            "[b.pdf, application/pdf, 15 bytes: this model reads text only]",
        ),
        (
            FilePart(media_type="", extra={"file_id": "file-1"}),
            "[file, file-1: this model reads text only]",
        ),
        (
            FilePart(media_type="audio/wav", url="data:audio/wav;base64,AAAA"),
            "[audio/wav, 3 bytes: this model reads text only]",
        ),
        (FilePart(media_type="text/plain", url="data:text/plain;base64,w7xi"), "üb"),
        (FilePart(media_type="text/csv", url="data:text/csv;base64,YSxi", name="t.csv"), "[t.csv]\na,b"),
        (FilePart(media_type="", url="data:application/json,%7B%7D"), "{}"),
        # what calls itself text and is none
        (
            FilePart(media_type="text/plain", url="data:text/plain;base64,/w=="),
            "[text/plain, 1 bytes: this model reads text only]",
        ),
        (
            FilePart(media_type="text/plain", url="data:text/plain;base64,no base64!"),
            "[text/plain, 7 bytes: this model reads text only]",
        ),
    ],
)
def test_words_for_each_kind(part, read):
    assert words(part) == read


def test_an_attachment_stands_on_a_line_of_its_own():
    assert words(TextPart("a"), TextPart("b"), ImagePart(IMAGE), TextPart("c")) == f"ab\n{SEEN}\nc"


def test_messages_without_attachments_stay_as_they_are():
    message = Message(role="user", content=[TextPart("a", extra={"cache_control": {}}), TextPart("b")])
    assert in_words([message]).messages == (message,)


@pytest.fixture
async def start(rolltap_serve, rolltap_tokenizer):
    async def run(*script):
        backend = ScriptedTokenBackend(rolltap_tokenizer, script)
        server = await rolltap_serve(backend)
        return server, backend, await server.session()

    return run


def chat_body(part):
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "what is it?"}, part]}]
    return messages


@pytest.mark.parametrize("in_history", [False, True])
async def test_a_rollout_with_an_image_goes_on(start, in_history):
    """The image comes again with every turn, and the second turn extends the first."""
    server, backend, session = await start("A dot.", "Blue.")
    messages = chat_body({"type": "image_url", "image_url": {"url": IMAGE}})
    if in_history:
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, *messages]
    path = f"/{session}/v1/chat/completions"
    _, first = await server.post(path, {"messages": messages})
    messages += [first["choices"][0]["message"], {"role": "user", "content": "its colour?"}]
    _, second = await server.post(path, {"messages": messages})
    assert second["choices"][0]["message"]["content"] == "Blue."
    (node,) = await server.nodes(session, messages="true")
    assert_exact(node, backend.calls[1], backend.calls[0])
    assert f"what is it?\n{SEEN}" in node["full_text"]
    assert f"what is it?\n{SEEN}" in [message["content"] for message in node["messages"]]


async def test_the_node_says_what_the_model_could_not_see(start):
    server, _, session = await start("A dot.")
    body = {"messages": chat_body({"type": "image_url", "image_url": {"url": IMAGE}})}
    await server.post(f"/{session}/v1/chat/completions", body)
    (node,) = await server.nodes(session)
    assert node["metadata"]["notes"] == [
        "image/png, 70 bytes: words stand for it, since this model reads text only"
    ]


async def test_another_image_of_the_same_kind_and_size_reads_the_same(start):
    """The model can't tell them apart, so the record does not."""
    server, backend, session = await start("A dot.", "Blue.")
    other = "data:image/png;base64," + base64.b64encode(bytes(70)).decode()
    _, first = await server.post(
        f"/{session}/v1/chat/completions",
        {"messages": chat_body({"type": "image_url", "image_url": {"url": IMAGE}})},
    )
    messages = chat_body({"type": "image_url", "image_url": {"url": other}})
    messages += [first["choices"][0]["message"], {"role": "user", "content": "b"}]
    await server.post(f"/{session}/v1/chat/completions", {"messages": messages})
    assert len(await server.nodes(session)) == 1
    assert len(backend.calls) == 2
