"""The options of a backend of kind "anyllm"."""

import os
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from rolltap import read_options
from rolltap_plugins.upstream.options import api_key, check_url


class Options(Struct, frozen=True, kw_only=True):
    """What a backend of kind "anyllm" understands."""

    provider: str = "openai"
    """any-llm's name of the provider, such as "anthropic", "groq" or "ollama"."""
    model: str = ""
    """The provider's own name of the model; default: the name that clients use."""
    api_base: str = ""
    """The address of another server of the provider's kind."""
    api_key_env: str = ""
    """Environment variable that holds the API key; default: the provider's own variable."""
    max_retries: Annotated[int, Meta(ge=0)] = 0
    """How often the provider's SDK repeats a request by itself, before rolltap hears of a failure."""

    @classmethod
    def read(cls, table: Mapping[str, Any], model: str, environ: Mapping[str, str] = os.environ) -> "Options":
        """The options in `table`, checked. Raises `ConfigError` that names the key, the value and the way out."""
        where = f"model {model!r}, backend of kind 'anyllm'"
        options = read_options(table, cls, where)
        if options.api_base:
            check_url("api_base", options.api_base, where)
        api_key(options.api_key_env, where, environ)
        return options
