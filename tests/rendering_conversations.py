"""What the tests of rendering share: a renderer for every template there is, and conversations for it."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from hypothesis import strategies as st

from rolltap.rendering import Renderer
from rolltap.testing.tokenizers import FAMILIES, tiny_tokenizer
from rolltap.types.chat import Message, ToolCall

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]

_REAL_TEMPLATES = Path(__file__).parents[2] / "shared" / "templates"
_REAL_FAMILIES = {"qwen3": "qwen3", "deepseek-r1": "deepseek", "glm-4.6": "glm", "smollm2": "chatml"}
REAL_TEMPLATES = {
    f"real-{name}": (family, _REAL_TEMPLATES / f"{name}.jinja")
    for name, family in _REAL_FAMILIES.items()
    if (_REAL_TEMPLATES / f"{name}.jinja").exists()
}
"""Templates of real models, where they lie beside the repository; the tokenizer is one of ours."""
TEMPLATES = [*FAMILIES, *REAL_TEMPLATES]


class Tokens(msgspec.Struct, rename={"plain": "added"}):
    """The tokens of a real template's model, as the meta.json beside the templates has them."""

    eos: str
    stops: list[str]
    special: list[str]
    plain: list[str]
    bos: str | None = None


def _real_tokens() -> dict[str, Tokens]:
    meta = _REAL_TEMPLATES / "meta.json"
    if not meta.exists():
        return {}
    known = msgspec.json.decode(meta.read_bytes(), type=dict[str, Tokens])
    # Its template assigns to messages, which Jinja refuses from the second turn on.
    return {f"tokens-{name}": tokens for name, tokens in known.items() if name != "MiroThinker"}


REAL_TOKENS = _real_tokens()
"""Real templates with a tokenizer that has their own special tokens, where they lie beside the repository."""


class Ends(NamedTuple):
    """How turns end in a style of template, written down by hand: what the probing must find."""

    answer: str
    """Closes an answer in the history; "" where nothing does."""
    call: str
    """Closes a turn with calls in the history."""
    stops: frozenset[str]
    """All tokens that may end what the model produced."""
    headers: Mapping[str, str] = MappingProxyType({})
    """Where nothing closes a turn: the tokens that open the next message, by its role."""
    markup: str = ""
    """Where nothing closes a turn: what a call has after a string that is its last argument."""


def _real_ends(name: str, tokens: Tokens) -> Ends:
    if "GLM" in name.upper():
        between = "" if name == "tokens-GLM-5.2" else "\n"
        return ENDS["glm"]._replace(markup=f"</arg_value>{between}</tool_call>")
    words_alone = {"tokens-cz-falcon-instruct", "tokens-cz-solar-instruct"}
    other = {"tokens-cz-phi-3-small": "<|end|>", "tokens-gemma3n": "<end_of_turn>"}
    end = "" if name in words_alone else other.get(name, tokens.eos)
    return Ends(end, end, frozenset(tokens.stops))


_CHATML = Ends("<|im_end|>", "<|im_end|>", frozenset({"<|im_end|>"}))
ENDS = {
    "chatml": _CHATML,
    "qwen3": _CHATML._replace(stops=frozenset({"<|im_end|>", "<|endoftext|>"})),
    "llama3": Ends("<|eot_id|>", "<|eot_id|>", frozenset({"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"})),
    "glm": Ends(
        "",
        "",
        frozenset({"<|endoftext|>", "<|user|>", "<|observation|>"}),
        {"user": "<|user|>", "tool": "<|observation|>"},
        "</arg_value>\n</tool_call>",
    ),
    "deepseek": Ends("<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>", frozenset({"<｜end▁of▁sentence｜>"})),  # noqa: RUF001
    "mistral": Ends("</s>", "</s>", frozenset({"</s>"})),
    "harmony": Ends("<|end|>", "<|call|>", frozenset({"<|return|>", "<|call|>", "<|end|>", "<|endoftext|>"})),
    "plain": Ends("", "", frozenset({"</s>"})),
    "answer_marks": Ends("<|turn_end|>", "<|turn_end|>", frozenset({"<|turn_end|>"})),
    "last_end": Ends(
        "",
        "",
        frozenset({"</s>", "<|user|>", "<|tool|>"}),
        {"user": "<|user|>", "tool": "<|tool|>"},
        '"}}</call>',
    ),
    "spaced": Ends("", "", frozenset({"</s>", "<|user|>"}), {"user": "<|user|>"}),
    "first_call": _CHATML,
}


ENDS |= {name: _real_ends(name, tokens) for name, tokens in REAL_TOKENS.items()}
CALLS = {"llama3": 1, "harmony": 1, "plain": 0, "spaced": 0}
"""How many calls of one message a style shows; two where it is not named here."""
# These refuse a tool's result: roles must alternate.
CALLS |= {name: 0 for name in REAL_TOKENS if name.startswith("tokens-cz-") or name == "tokens-gemma3n"}


def family(template: str) -> str:
    """The style of a template of `TEMPLATES`."""
    return REAL_TEMPLATES[template][0] if template in REAL_TEMPLATES else template


class Renderers:
    """A renderer for each of `TEMPLATES`, made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Renderer] = {}

    def __call__(self, template: str) -> Renderer:
        if template in self._made:
            return self._made[template]
        if template in REAL_TOKENS:
            tokens = REAL_TOKENS[template]
            folder = tiny_tokenizer(
                self._folder / template,
                template=(_REAL_TEMPLATES / f"{template.removeprefix('tokens-')}.jinja").read_text("utf-8"),
                special_tokens=tokens.special,
                plain_tokens=tokens.plain,
                eos_token=tokens.eos,
                bos_token=tokens.bos or "",
                eos_tokens=[stop for stop in tokens.stops if stop != tokens.eos],
            )
            self._made[template] = Renderer.load(str(folder))
        else:
            built = FAMILIES[family(template)].build(self._folder / family(template))
            file = str(REAL_TEMPLATES[template][1]) if template in REAL_TEMPLATES else ""
            self._made[template] = Renderer.load(str(built), chat_template=file)
        return self._made[template]


_LOOK_ALIKES = [
    "<|im_end|>",
    "<|im_start|>",
    "<|user|>",
    "<|observation|>",
    "</s>",
    "[INST]",
    "<|end|>",
    "<tool_call>",
    "<|turn_end|>",
]
_WORDS = st.one_of(
    st.sampled_from(["Paris", "is", "sunny", "naïve", "你好", "🙂", "\n", "  ", '"', "{", "}", "\\"]),
    st.text(max_size=6),
)


def _texts(words: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(words, min_size=1, max_size=6).map(" ".join).map(str.strip).map(lambda text: text or "x")


TEXTS = _texts(st.one_of(_WORDS, st.sampled_from(_LOOK_ALIKES)))
"""What people and tools say: anything, special tokens spelled out among it."""
SPEECH = _texts(_WORDS)
"""What a model says: it cannot spell a token that ends its turn."""
ARGUMENTS = st.dictionaries(
    st.sampled_from(["city", "unit", "x"]), st.one_of(SPEECH, st.integers(), st.booleans())
)


@st.composite
def conversations(draw: st.DrawFn, *, calls: int = 2, system: bool = True) -> list[Message]:
    """Conversations that every template takes: questions, rounds of at most `calls` calls, answers; and a question."""
    messages = []
    if system and draw(st.booleans()):
        messages.append(Message(role="system", content=draw(TEXTS)))
    number = 0
    for _ in range(draw(st.integers(1, 3))):
        messages.append(Message(role="user", content=draw(TEXTS)))
        for _ in range(draw(st.integers(0, 2)) if calls else 0):
            made = []
            for _ in range(draw(st.integers(1, calls))):
                number += 1
                arguments = msgspec.json.encode(draw(ARGUMENTS)).decode()
                made.append(ToolCall(name="get_weather", arguments=arguments, id=f"call{number:05}"))
            words = draw(st.one_of(st.none(), SPEECH))
            messages.append(Message(role="assistant", content=words, tool_calls=made))
            messages += [
                Message(role="tool", content=draw(TEXTS), tool_call_id=call.id, name=call.name)
                for call in made
            ]
        messages.append(Message(role="assistant", content=draw(SPEECH)))
    return [*messages, Message(role="user", content=draw(TEXTS))]
