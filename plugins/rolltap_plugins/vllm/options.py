"""The options of a vLLM backend's table in the config."""

from typing import ClassVar, Literal

from rolltap_plugins.upstream.options import EngineOptions

LogprobsMode = Literal["", "raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]


class Options(EngineOptions, frozen=True, kw_only=True):
    """What a backend of kind "vllm" understands. Either `url` or `launch` says where the engine is."""

    KIND: ClassVar[str] = "vllm"

    endpoint: Literal["auto", "generate", "completions"] = "auto"
    """`/inference/v1/generate` or `/v1/completions`; "auto" takes the first where the server has it."""
    logprobs_mode: LogprobsMode = ""
    """What the server was started with (`--logprobs-mode`); default: asked of it, else vLLM's own default."""
