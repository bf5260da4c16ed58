"""The backend for everything that any-llm reaches: dozens of providers, each through its own SDK.

any-llm takes seconds to import, so that this module does not; the first backend does.
Options of a backend's table are the fields of `rolltap_plugins.anyllm.options.Options`.
"""

import importlib.util
import os
from collections.abc import AsyncGenerator
from inspect import isawaitable
from typing import Any

from rolltap import ChatBackend, ChatDelta, ChatRequest, ConfigError, hookimpl
from rolltap_plugins.anyllm.failures import understood
from rolltap_plugins.anyllm.options import Options
from rolltap_plugins.anyllm.requests import arguments
from rolltap_plugins.anyllm.values import reply_fields
from rolltap_plugins.upstream.replies import ReplyReader
from rolltap_plugins.upstream.requests import Style

ANYLLM_AVAILABLE = importlib.util.find_spec("any_llm") is not None
"""Whether any-llm is installed."""

# Providers whose servers run a model's own chat template, which takes variables.
_TEMPLATING = frozenset({"llamacpp", "llamafile", "lmstudio", "sglang", "vllm"})

# Providers that want the thinking of earlier turns back, or take it.
_THINKING = frozenset(
    {"cerebras", "dashscope", "deepseek", "groq", "minimax", "moonshot", "openrouter", "zai"}
)


class AnyLLM:
    """any-llm's class of that name, imported when it is first asked."""

    @staticmethod
    def create(provider: str, **options: Any) -> Any:
        """A provider's client: see `any_llm.AnyLLM.create`."""
        from any_llm import AnyLLM as AnyLLMItself

        return AnyLLMItself.create(provider, **options)


class AnyLLMBackend(ChatBackend):
    """Asks a provider through any-llm; streamed where the client streams, else plain.

    :param provider: any-llm's name of it; upper and lower case are the same.
    :param api_key: default: what the provider's own environment variable holds.
    :param api_base: the address of another server of the provider's kind.
    :param model: the provider's name of the model, where that is not the one that requests name.
    :param client: further arguments of `any_llm.AnyLLM.create`.
    :raises ImportError: any-llm, or what it needs for the provider, is not installed.
    """

    parameters = None
    ends_explicitly = True

    def __init__(
        self,
        provider: str = "openai",
        api_key: str | None = None,
        api_base: str | None = None,
        *,
        model: str = "",
        client: dict[str, Any] | None = None,
    ) -> None:
        if not ANYLLM_AVAILABLE:
            raise ImportError("any-llm is not installed: pip install any-llm-sdk")
        self.provider = provider.lower()
        self.name = f"anyllm-{self.provider}"
        self.api_key = api_key or None
        self.api_base = api_base or None
        self._model = model
        templating = self.api_base is not None or self.provider in _TEMPLATING
        thinking = templating or self.provider in _THINKING
        self._style = Style(template_kwargs=templating, reasoning="reasoning_content" if thinking else "")
        given = {"api_key": self.api_key, "api_base": self.api_base}
        settings = {name: value for name, value in given.items() if value is not None}
        self.llm = AnyLLM.create(self.provider, **settings, **(client or {}))

    def map_model_id(self, model: str) -> str:
        """The provider's name of the model that a request names."""
        return self._model or model

    def supports_model(self, model: str) -> bool:  # noqa: ARG002
        """Always: the provider says which models it has when it is asked."""
        return True

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Answer the request. Raises any-llm's errors and `UpstreamError`. Leaving early closes the stream."""
        reader = ReplyReader(request)
        asked = arguments(request, self.map_model_id(request.model), self._style)
        reply: Any = None
        try:
            reply = await self.llm.acompletion(**asked)
            if not hasattr(reply, "__aiter__"):
                for delta in reader.whole(reply_fields(reply)):
                    yield delta
                return
            async for chunk in reply:
                for delta in reader.chunk(reply_fields(chunk)):
                    yield delta
        except Exception as error:
            raise understood(error, self.api_key) from error
        finally:
            if hasattr(reply, "aclose"):
                await reply.aclose()

    async def close(self) -> None:
        """Close the provider's client, if it has one that can be closed."""
        close = getattr(getattr(self.llm, "client", None), "close", None)
        closing = close() if close is not None else None
        if isawaitable(closing):
            await closing


@hookimpl
def create_backend(kind: str, options: dict[str, Any], model: str) -> AnyLLMBackend | None:
    """The backend, for `kind = "anyllm"`."""
    if kind != "anyllm":
        return None
    read = Options.read(options, model)
    given: dict[str, Any] = {
        "api_key": os.environ[read.api_key_env] if read.api_key_env else None,
        "api_base": read.api_base,
        "model": read.model or model,
    }
    # Errors of one kind for all providers, to be classified. No retries below rolltap's own: they would hold a
    # request back that another backend could answer, and multiply with those of clients.
    client = {"unified_exceptions": True, "max_retries": read.max_retries}
    try:
        return _created(read.provider, given, client)
    except Exception as error:
        raise ConfigError(f"model {model!r}, backend of kind 'anyllm': {error}") from error


def _created(provider: str, given: dict[str, Any], client: dict[str, Any]) -> AnyLLMBackend:
    try:
        return AnyLLMBackend(provider, **given, client=client)
    except Exception as error:
        if getattr(error, "parameter_name", None) != "max_retries":
            raise
    del client["max_retries"]  # a provider whose SDK has no such setting
    return AnyLLMBackend(provider, **given, client=client)


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"create_backend": ["anyllm"]}


__all__ = ["ANYLLM_AVAILABLE", "AnyLLM", "AnyLLMBackend", "Options", "create_backend"]
