"""The backend for any server that speaks OpenAI's Chat Completions, without an SDK.

Options of a backend's table are the fields of `rolltap_plugins.openai_backend.options.Options`.
"""

from typing import Any

from rolltap import hookimpl
from rolltap_plugins.openai_backend.backend import OpenAIBackend
from rolltap_plugins.openai_backend.options import Options


@hookimpl
def create_backend(kind: str, options: dict[str, Any], model: str) -> OpenAIBackend | None:
    """The backend, for `kind = "openai"`."""
    return OpenAIBackend(Options.read(options, model), model) if kind == "openai" else None


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"create_backend": ["openai"]}


__all__ = ["OpenAIBackend", "Options", "create_backend"]
