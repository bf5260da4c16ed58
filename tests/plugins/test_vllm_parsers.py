"""vLLM's parsers, with a small package that has vLLM's names and contracts; the real ones: live/test_live_parsers.py."""

import importlib
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltap import BadRequest, ConfigError, Reasoning, ToolCall
from rolltap.config import PluginsConfig
from rolltap.plugins import Plugins
from rolltap.reading import OutputReader
from rolltap.testing import ScriptedTokenBackend
from rolltap.testing.parsing import assert_every_cut, read_pieces
from rolltap.testing.tokenizers import tiny_tokenizer
from rolltap_plugins import vllm_parsers
from rolltap_plugins.hermes import HermesToolParser
from rolltap_plugins.vllm_parsers import loading, names
from rolltap_plugins.vllm_parsers.plain import PlainText, rest_of

FAKE = {
    "__init__.py": "",
    "tool_parsers/__init__.py": """
        _TOOL_PARSERS_TO_REGISTER = {"hermes": ("m", "C"), "angle": ("m", "C"), "stub": ("m", "C"), "gone": ("m", "C")}
        """,
    "reasoning/__init__.py": """
        _REASONING_PARSERS_TO_REGISTER: dict = {"musing": ("m", "C"), "unmarked": ("m", "C")}
        """,
    "entrypoints/__init__.py": "",
    "entrypoints/openai/__init__.py": "",
    "entrypoints/openai/chat_completion/__init__.py": "",
    "entrypoints/openai/chat_completion/protocol.py": """
        class ChatCompletionRequest:
            skip_special_tokens = True

            def __init__(self, tools):
                self.tools = tools

            @classmethod
            def model_validate(cls, body):
                if any("name" not in tool["function"] for tool in body.get("tools", ())):
                    raise ValueError("function.name: Field required")
                return cls(body.get("tools"))
        """,
    "parser/__init__.py": """
        import re
        from types import SimpleNamespace

        class Parser:
            name, reasoning_parser = "", None

            def __init__(self, tokenizer, tools=None):
                if "<angle>" not in tokenizer.get_vocab():
                    raise RuntimeError("no <angle> in the vocabulary")
                self.tools = tools

            def adjust_request(self, request):
                request.skip_special_tokens = False
                return request

            def parse(self, text, request, enable_auto_tools=False):
                assert enable_auto_tools
                if self.name == "stub":
                    raise NotImplementedError("a stub")
                if "crash" in text:
                    raise KeyError("arguments")
                found = re.findall("<angle>(.+?)</angle>", text)
                calls = [SimpleNamespace(name=name, arguments="{}", id=f"chatcmpl-tool-{id(name)}") for name in found]
                return None, re.split("<angle>", text)[0] or None, calls

        class Musing(Parser):
            @property
            def reasoning_parser(self):
                marks = ("<muse>", "</muse>") if self.name == "musing" else (None, None)
                return SimpleNamespace(reasoning_start_str=marks[0], reasoning_end_str=marks[1])

            def parse(self, text, request, enable_auto_tools=False):
                if "crash" in text:
                    raise KeyError("muse")
                before, closed, after = text.removeprefix("<muse>").partition("</muse>")
                if "<again>" in after:
                    return None, text, None
                return (before, after or None, None) if closed or text.startswith("<muse>") else (None, text, None)

        class ParserManager:
            @classmethod
            def get_parser(cls, tool_parser_name=None, reasoning_parser_name=None, enable_auto_tools=False):
                if tool_parser_name == "gone":
                    raise TypeError("not registered") from ImportError("No module named 'melody'")
                base = Parser if tool_parser_name else Musing
                return type("Composed", (base,), {"name": tool_parser_name or reasoning_parser_name})
        """,
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}, {"type": "web_search"}]


class Vocabulary:
    """All of a tokenizer that the fake looks at."""

    def __init__(self, *words):
        self._words = words

    def get_vocab(self):
        return dict.fromkeys(self._words, 0)


TOKENIZER = Vocabulary("<angle>")


def forget():
    names.listed.cache_clear()
    loading._loaded.clear()
    for module in [name for name in sys.modules if name == "vllm" or name.startswith("vllm.")]:
        del sys.modules[module]
    importlib.invalidate_caches()


@pytest.fixture
def without_vllm():
    if names.folder() is not None:
        pytest.skip("vLLM is installed here")
    forget()


@pytest.fixture
def fake_vllm(tmp_path, monkeypatch, without_vllm):
    for name, source in FAKE.items():
        file = tmp_path / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(line.removeprefix("        ") for line in source.splitlines()))
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    yield tmp_path / "vllm"
    forget()


async def make_tools(name="angle", tokenizer=TOKENIZER):
    return await vllm_parsers.tool_parser(name, TOOLS, tokenizer)


async def make_reasoning(name="musing"):
    return await vllm_parsers.reasoning_parser(name, TOKENIZER)


def test_importing_the_plugin_imports_nothing_heavy():
    code = (
        "import sys, rolltap_plugins.vllm_parsers; print([m for m in ('vllm', 'torch') if m in sys.modules])"
    )
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert got.stdout.strip() == "[]"


async def test_without_vllm_no_name_is_known(without_vllm):
    assert await make_tools() is None
    assert await make_reasoning() is None


async def test_names_are_listed_without_an_import(fake_vllm):
    assert names.listed("tool") == {"hermes", "angle", "stub", "gone"}
    assert names.listed("reasoning") == {"musing", "unmarked"}
    assert await make_tools("unknown") is None
    assert "vllm" not in sys.modules


async def test_an_older_place_of_the_registry(fake_vllm):
    older = fake_vllm / "entrypoints" / "openai" / "tool_parsers" / "__init__.py"
    older.parent.mkdir()
    (fake_vllm / "tool_parsers" / "__init__.py").rename(older)
    assert "angle" in names.listed("tool")


async def test_a_registry_that_is_nowhere_is_said(fake_vllm, caplog):
    (fake_vllm / "tool_parsers" / "__init__.py").write_text("tools = {}")
    assert names.listed("tool") == frozenset()
    assert f"the vLLM at {fake_vllm} lists its tool parsers in a way" in caplog.text


async def test_our_own_parsers_are_asked_first(fake_vllm):
    plugins = Plugins.load(PluginsConfig())
    ours = await plugins.call_first("tool_parser", name="hermes", tools=TOOLS, tokenizer=TOKENIZER)
    assert ours is HermesToolParser
    assert "vllm" not in sys.modules
    theirs = await plugins.call_first("tool_parser", name="angle", tools=TOOLS, tokenizer=TOKENIZER)
    assert isinstance(theirs(), vllm_parsers.VLLMToolParser)


async def test_a_format_is_loaded_once(fake_vllm):
    first, second = (await make_tools())(), (await make_tools())()
    assert first._format is second._format
    assert first.keep_special_tokens
    assert "VLLM_LOGGING_STREAM" not in os.environ


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("Hello.", ["Hello."]),
        ("Ok. <angle>f</angle> lost<angle>g</angle>", ["Ok. ", ToolCall("f"), ToolCall("g")]),
        ("Words, then 1 < 2.", ["Words, then 1 < 2."]),
        ("Text and a crash <angle>f</angle>", ["Text and a crash <angle>f</angle>"]),
    ],
)
async def test_whole_and_cut_texts_are_read_alike(fake_vllm, text, pieces):
    assert_every_cut(await make_tools(), text, pieces)


async def test_content_comes_at_once_up_to_where_markup_may_start(fake_vllm):
    parser = (await make_tools())()
    assert [parser.feed(piece) for piece in ("It is ", "so", "on ", "x", "<", "angle>f</angle>")] == [
        ["It is "], [], ["soon "], [], [], []
    ]  # fmt: skip
    assert parser.finish() == ["x", ToolCall("f")]


async def test_what_can_not_be_loaded_is_said(fake_vllm):
    with pytest.raises(
        ConfigError, match="'angle' is vLLM's and needs the model's tokenizer: set `tokenizer`"
    ):
        await make_tools(tokenizer=None)
    with pytest.raises(
        ConfigError, match="'angle' can't be used with the model's tokenizer: no <angle> in the"
    ):
        await make_tools(tokenizer=Vocabulary())
    with pytest.raises(ConfigError, match="'stub' can't be used with the model's tokenizer: a stub"):
        await make_tools("stub")
    with pytest.raises(ConfigError, match="can't load its tool parser 'gone': No module named 'melody'"):
        await make_tools("gone")


async def test_a_vllm_without_the_unified_parser_is_said(fake_vllm):
    (fake_vllm / "parser" / "__init__.py").unlink()
    (fake_vllm / "parser").rename(fake_vllm / "parsers")
    with pytest.raises(
        ConfigError, match=r"vllm.parser.ParserManager, as in vLLM 0.32\), which the installed"
    ):
        await make_tools()


async def test_tools_that_vllm_refuses(fake_vllm):
    with pytest.raises(BadRequest, match=r"function\.name: Field required"):
        await vllm_parsers.tool_parser("angle", [{"type": "function", "function": {}}], TOKENIZER)


async def test_thinking_is_given_when_it_is_closed_and_the_answer_as_it_comes(fake_vllm):
    parser = (await make_reasoning())()
    fed = [parser.feed(piece) for piece in ("<muse>\nHm", ".</mu", "se>An", "swer.")]
    assert fed == [[], [], [Reasoning("Hm."), "An"], ["swer."]]
    assert parser.finish() == []


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("No thinking.", ["No thinking."]),
        ("<muse>never closed", [Reasoning("never closed")]),
        ("<muse>a</muse>b</muse>c", [Reasoning("a"), "b</muse>c"]),
        ("<muse>crash", ["<muse>crash"]),
    ],
)
async def test_thinking_in_every_cut(fake_vllm, text, pieces):
    assert_every_cut(await make_reasoning(), text, pieces)
    assert_every_cut(await make_reasoning("unmarked"), text, pieces)


async def test_a_prompt_that_opened_or_closed_the_thinking(fake_vllm):
    make = await make_reasoning()

    def read(tail, text):
        return read_pieces(OutputReader(None, make(), prompt_tail=tail), list(text))

    assert read("<muse>\n", "so</muse>b") == [Reasoning("so"), "b"]
    assert read("<muse>\n\n</muse>\n\n", "so</muse>b") == ["so</muse>b"]
    assert read("assistant\n", "so</muse>b") == [Reasoning("so"), "b"]


async def test_served_and_missing_at_start(fake_vllm, rolltap_serve):
    folder = str(tiny_tokenizer(fake_vllm.parent / "tokenizer", plain_tokens=["<angle>"]))
    backend = ScriptedTokenBackend(folder, ["Ok. <angle>f</angle>"])
    server = await rolltap_serve(backend, model={"tool_parser": "angle"})
    body = {"messages": [{"role": "user", "content": "a"}], "tools": TOOLS[:1]}
    status, answer = await server.post("/v1/chat/completions", body)
    assert status == 200, answer
    message = answer["choices"][0]["message"]
    assert message["content"] == "Ok."
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["f"]
    assert message["tool_calls"][0]["id"].startswith("call_")
    with pytest.raises(ConfigError, match="'stub' can't be used"):
        await rolltap_serve(ScriptedTokenBackend(folder, ["a"]), model={"tool_parser": "stub"})


@given(
    st.lists(st.sampled_from(["word", " ", "\n", "<", "[", "`", "é", "functools", "."]), max_size=12),
    st.data(),
)
def test_certain_text_depends_on_the_text_alone(parts, data):
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    whole, cut = PlainText(), PlainText()
    whole.feed(text)
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        cut.feed(text[start:end])
    assert (cut.text, cut.given) == (text, whole.given)
    assert text.startswith(whole.given)
    assert not set(whole.given) & set("<[")


@pytest.mark.parametrize(
    ("whole", "given", "rest"),
    [
        ("a b c", "a b", " c"),
        ("a b c", "\n a b ", "c"),
        ("a", "a b ", ""),
        ("", "a ", ""),
        ("after the call", "before ", "after the call"),
    ],
)
def test_what_is_left_of_the_content(whole, given, rest):
    assert rest_of(whole, given) == rest
