"""The tiny tokenizers that plugin authors test with: real, small, always the same."""

import pytest

from rolltap.rendering import Renderer
from rolltap.testing.tokenizers import CHATML, FAMILIES, tiny_tokenizer
from rolltap.types.chat import ChatRequest, Message


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_small_and_always_the_same(family, tmp_path):
    first, second = (FAMILIES[family].build(tmp_path / name) for name in ("one", "two"))
    files = sorted(path.name for path in first.iterdir())
    assert files == sorted(path.name for path in second.iterdir())
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in files)
    renderer = Renderer.load(str(first))
    assert len(renderer.tokenizer) < 800
    assert renderer.decode(renderer.encode("Ünïcode 🙂 and\nlines"))[-5:] == "lines"
    for token in (*FAMILIES[family].special_tokens, *FAMILIES[family].plain_tokens):
        assert len(renderer.encode(token)) == 1
        assert (renderer.codec.id_of(token) in renderer.codec.special_ids) == (
            token in FAMILIES[family].special_tokens
        )


def test_words_take_fewer_tokens_than_letters(tmp_path):
    renderer = Renderer.load(str(tiny_tokenizer(tmp_path)))
    assert len(renderer.encode("the answer to the question")) < 10


def test_its_template_knows_tools(tmp_path):
    renderer = Renderer.load(str(tiny_tokenizer(tmp_path, template=CHATML)))
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    text = renderer.prompt(ChatRequest(messages=[Message(role="user", content="Hi")], tools=tools)).text
    assert '"name": "look"' in text
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_tokens_and_template_are_the_callers(tmp_path):
    folder = tiny_tokenizer(
        tmp_path,
        template="{{ messages[0].content }}<end>",
        special_tokens=["<end>"],
        plain_tokens=[],
        eos_token="<end>",
    )
    renderer = Renderer.load(str(folder))
    assert renderer.end_ids == {renderer.codec.id_of("<end>")}
    assert renderer.encode("<|im_end|>") != [renderer.codec.id_of("<|im_end|>")]
