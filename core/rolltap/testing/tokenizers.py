"""Small, real tokenizers for tests, with chat templates in the styles of the families that are out there."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from msgspec import Struct
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

_UNKNOWN = "<unk>"
_TEMPLATES = Path(__file__).parent / "templates"
_TEXT = """\
A tokenizer for tests needs few words, but real ones: the weather in Paris, the capital of France, a list of files.
It is sunny today, and it will rain tomorrow. What is the answer to the question? The answer is forty-two, of course.
You are a helpful assistant. Write a function that adds two numbers, and then call it with the arguments it needs.
{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}} returned {"temperature": 21, "ok": true}.
def add(first, second):
    return first + second  # the sum of the two
Straße, naïve, Köln, señor, добрый день, 你好世界, こんにちは, emoji 🙂🚀 and numbers 0 1 2 3 4 5 6 7 8 9 10 100 2024.
"""


class Family(Struct, frozen=True, kw_only=True):
    """A style of chat template, with the special tokens that it takes."""

    name: str
    special_tokens: tuple[str, ...]
    eos_token: str
    bos_token: str = ""
    eos_tokens: tuple[str, ...] = ()
    """Further tokens that end a turn, put into a generation_config.json."""
    plain_tokens: tuple[str, ...] = ()
    """Added tokens that are not special: shown where special tokens are skipped."""
    pieces: bool = False
    """A vocabulary in sentencepiece's manner, in place of a byte-level one."""
    add_bos: bool = False
    """Whether encoding a raw text puts the BOS in front."""

    @property
    def template(self) -> str:
        """The chat template's text."""
        return (_TEMPLATES / f"{self.name}.jinja").read_text(encoding="utf-8")

    def build(self, folder: Path) -> Path:
        """Make a tokenizer of this family in the folder."""
        return tiny_tokenizer(
            folder,
            template=self.template,
            special_tokens=self.special_tokens,
            plain_tokens=self.plain_tokens,
            eos_token=self.eos_token,
            bos_token=self.bos_token,
            eos_tokens=self.eos_tokens,
            pieces=self.pieces,
            add_bos=self.add_bos,
        )


def _families() -> dict[str, Family]:
    tables = tomllib.loads((_TEMPLATES / "families.toml").read_text(encoding="utf-8"))
    return {name: msgspec.convert({"name": name, **table}, Family) for name, table in tables.items()}


FAMILIES = _families()
"""By name. ChatML with Hermes' tool calls; templates in the styles of Qwen 3, Llama 3, GLM, DeepSeek, Mistral and
gpt-oss; one without special tokens; and further ones, each with a peculiarity in how turns end or calls are shown.
Wording and tokenizers are our own."""

CHATML = FAMILIES["chatml"].template
"""A ChatML template that knows tools."""


def tiny_tokenizer(
    folder: Path,
    *,
    template: str = CHATML,
    special_tokens: Sequence[str] = FAMILIES["chatml"].special_tokens,
    plain_tokens: Sequence[str] = FAMILIES["chatml"].plain_tokens,
    eos_token: str = FAMILIES["chatml"].eos_token,
    bos_token: str = "",
    eos_tokens: Sequence[str] = (),
    pieces: bool = False,
    add_bos: bool = False,
) -> Path:
    """Make a small tokenizer with a chat template in `folder`; `AutoTokenizer.from_pretrained` loads it.

    Its vocabulary is all 256 bytes and some hundred merges, the same at every call: byte-level BPE, or with `pieces`
    in sentencepiece's manner (▁ for blanks, `<0xE4>` for bytes). `plain_tokens` are added tokens that are not
    special. `eos_tokens` beside `eos_token` go into a generation_config.json. Returns the folder.
    """
    tokenizer = _piece_tokenizer() if pieces else _byte_level_tokenizer()
    tokenizer.add_special_tokens(list(special_tokens))
    tokenizer.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in plain_tokens])
    if add_bos:
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=[bos_token, "$A"], special_tokens=[(bos_token, tokenizer.token_to_id(bos_token))]
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": eos_token,
        "pad_token": eos_token,
        "clean_up_tokenization_spaces": False,
    }
    if bos_token:
        config["bos_token"] = bos_token
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    if eos_tokens:
        ids = [tokenizer.token_to_id(token) for token in (eos_token, *eos_tokens)]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}), encoding="utf-8")
    return folder


def _byte_level_tokenizer() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    return tokenizer


def _piece_tokenizer() -> tokenizers.Tokenizer:
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = tokenizers.Tokenizer(models.BPE(unk_token=_UNKNOWN))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    # Few letters, so that others are spelled in bytes.
    letters = sorted({letter for letter in _TEXT if letter.isascii() and not letter.isspace()} | {"▁"})
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=[_UNKNOWN],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
    )
    trained.train_from_iterator([_TEXT], trainer)
    model = json.loads(trained.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    vocabulary = {token: index for index, token in enumerate([*tokens, *byte_tokens])}
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token=_UNKNOWN, byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer
