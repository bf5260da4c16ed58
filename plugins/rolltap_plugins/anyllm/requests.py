"""A request as the arguments of any-llm's `acompletion`."""

from typing import Any

from rolltap import ChatRequest, thawed
from rolltap_plugins.upstream.requests import Style, chat_body

_NAMED = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_tokens",
        "messages",
        "model",
        "n",
        "parallel_tool_calls",
        "presence_penalty",
        "prompt_cache_key",
        "reasoning_effort",
        "response_format",
        "seed",
        "service_tier",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "user",
    }
)
"""The arguments that any-llm knows; it refuses others, but sends what is in `extra_body`. Those by which its callers
reach under it, `extra_headers` among them, are no client's to set."""


def arguments(request: ChatRequest, model: str, style: Style) -> dict[str, Any]:
    """The arguments: known parameters by their names, all others in `extra_body`; plain lists, as SDKs look for."""
    body: dict[str, Any] = thawed(chat_body(request, model, style))
    extra = {name: body.pop(name) for name in body.keys() - _NAMED}
    if extra:
        body["extra_body"] = extra
    return body
