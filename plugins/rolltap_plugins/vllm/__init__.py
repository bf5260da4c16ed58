"""The backend for vLLM: exact token ids and logprobs from its HTTP server, which it can also start itself.

Options of a backend's table are the fields of `rolltap_plugins.vllm.options.Options`.
"""

from typing import Any

from rolltap import hookimpl
from rolltap_plugins.vllm.backend import VLLMBackend
from rolltap_plugins.vllm.options import Options


@hookimpl
def create_backend(kind: str, options: dict[str, Any], model: str) -> VLLMBackend | None:
    """The vLLM backend, for `kind = "vllm"`."""
    if kind != "vllm":
        return None
    return VLLMBackend(Options.read(options, model), model)


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"create_backend": ["vllm"]}


__all__ = ["Options", "VLLMBackend", "create_backend"]
