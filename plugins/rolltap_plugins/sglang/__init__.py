"""The backend for SGLang: exact token ids and logprobs from its own `/generate`, which it can also start itself.

Options of a backend's table are the fields of `rolltap_plugins.sglang.options.Options`.
"""

from typing import Any

from rolltap import hookimpl
from rolltap_plugins.sglang.backend import SGLangBackend
from rolltap_plugins.sglang.options import Options


@hookimpl
def create_backend(kind: str, options: dict[str, Any], model: str) -> SGLangBackend | None:
    """The SGLang backend, for `kind = "sglang"`."""
    return SGLangBackend(Options.read(options, model), model) if kind == "sglang" else None


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"create_backend": ["sglang"]}


__all__ = ["Options", "SGLangBackend", "create_backend"]
