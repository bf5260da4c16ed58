"""The options of an SGLang backend's table in the config."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from rolltap_plugins.upstream.options import EngineOptions, api_key

ORIGINAL_LOGPROBS = "SGLANG_RETURN_ORIGINAL_LOGPROB"
"""The environment variable by which SGLang gives logprobs from before temperature."""


class Options(EngineOptions, frozen=True, kw_only=True):
    """What a backend of kind "sglang" understands. Either `url` or `launch` says where the engine is."""

    KIND: ClassVar[str] = "sglang"

    admin_key_env: str = ""
    """Environment variable that holds the server's admin key (`--admin-api-key`), for pauses and weights."""
    verify_share: Annotated[float, Meta(ge=0, le=1)] = 0.01
    """The share of calls whose prompt is proved by its logprobs: the engine then reads it all anew, without its cache."""
    logprobs_mode: Literal["", "raw_logprobs", "processed_logprobs"] = ""
    """What the server gives: raw where it was started with SGLANG_RETURN_ORIGINAL_LOGPROB=1, as rolltap starts it; else
    processed, which is after temperature."""

    def check(self, where: str, environ: Mapping[str, str]) -> None:
        """Raise `ConfigError` for options that contradict each other."""
        super().check(where, environ)
        api_key(self.admin_key_env, where, environ, option="admin_key_env")

    @property
    def served_logprobs(self) -> str:
        """What the logprobs are."""
        if self.logprobs_mode:
            return self.logprobs_mode
        original = bool(self.launch) and self.launch_env.get(ORIGINAL_LOGPROBS, "1").lower() in {"1", "true"}
        return "raw_logprobs" if original else "processed_logprobs"
