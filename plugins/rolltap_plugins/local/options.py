"""The keys of a `kind = "local"` table."""

from typing import Any, Literal

import msgspec

from rolltap import read_options


class LocalOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a local backend can be told. Every key has a default that serves the embedded model on the CPU."""

    model: str = ""
    """A folder or hub id of any causal LM; empty: SmolLM2-135M-Instruct."""
    device: str = "cpu"
    """A torch device, such as "cpu" or "cuda:1"; "auto" takes a GPU where there is one."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    threads: int = 0
    """CPU threads of one model step; 0: one less than the cores this process may use, at least 1."""
    context_length: int = 0
    """The longest sequence, prompt included, in tokens; 0: what the model says."""
    max_num_seqs: int = 32
    """Sequences (choices) decoded at once; further requests wait. 1 makes results independent of the load, bit by
    bit: sequences that are decoded together differ from lone ones by float rounding."""
    prefix_cache_mb: int = 512
    """Memory for the keys and values of ended sequences, which later prompts may begin with; 0: none are kept.
    Logprobs behind a reused prefix differ from freshly computed ones by float rounding."""
    cache_dir: str = ""
    """Where the embedded model is kept after its conversion; empty: the user's cache folder."""

    def __post_init__(self) -> None:
        for name, least in (
            ("threads", 0),
            ("context_length", 0),
            ("max_num_seqs", 1),
            ("prefix_cache_mb", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be {least} or more, not {getattr(self, name)}")

    @classmethod
    def read(cls, options: dict[str, Any]) -> "LocalOptions":
        """The options of a backend's table. Raises `ConfigError` that names the key, the value and what is allowed."""
        return read_options(options, cls, "backend of kind 'local'")
