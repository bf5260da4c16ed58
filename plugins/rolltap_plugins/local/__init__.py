"""The local backend: a causal language model in this process, by transformers, for a machine without a GPU or a key.

Without a `model` it serves SmolLM2-135M-Instruct. It gives exact ids and raw logprobs, decodes all requests
together in one worker thread, and keeps the keys and values of recent sequences so that a next turn prefills only
what is new.
"""

from typing import Any

from rolltap import Backend, hookimpl
from rolltap_plugins.local.backend import LocalBackend
from rolltap_plugins.local.options import LocalOptions

__all__ = ["LocalBackend", "LocalOptions", "create_backend"]


@hookimpl
def create_backend(kind: str, options: dict[str, Any]) -> Backend | None:
    """A local backend for `kind = "local"`; its table's keys are the fields of `LocalOptions`."""
    return LocalBackend(LocalOptions.read(options)) if kind == "local" else None


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"create_backend": ["local"]}
