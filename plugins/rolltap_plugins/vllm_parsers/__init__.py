"""vLLM's own tool and reasoning parsers, where vLLM is installed in rolltap's environment (extra `vllm`).

All of vLLM's names, without a prefix, asked last: a name that rolltap reads itself stays with rolltap's parser. vLLM is
imported only once a model's config or a session names one of the others: that takes 20 s and 600 MB, and happens in a
thread.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from rolltap import ReasoningParser, ToolParser, hookimpl
from rolltap_plugins.vllm_parsers.loading import Format, known, load
from rolltap_plugins.vllm_parsers.names import Registry, listed
from rolltap_plugins.vllm_parsers.reasoning import VLLMReasoningParser
from rolltap_plugins.vllm_parsers.tools import VLLMToolParser


@hookimpl(trylast=True)
async def tool_parser(
    name: str, tools: list[dict[str, Any]], tokenizer: Any
) -> Callable[[], ToolParser] | None:
    """Answer for the names of vLLM's tool parsers. Raises `ConfigError` where vLLM can't make that one."""
    found = await _format("tool", name, tokenizer)
    return None if found is None else partial(VLLMToolParser, found, found.request(tools))


@hookimpl(trylast=True)
async def reasoning_parser(name: str, tokenizer: Any) -> Callable[[], ReasoningParser] | None:
    """Answer for the names of vLLM's reasoning parsers. Raises `ConfigError` where vLLM can't make that one."""
    found = await _format("reasoning", name, tokenizer)
    return None if found is None else partial(VLLMReasoningParser, found)


async def _format(kind: Registry, name: str, tokenizer: Any) -> Format | None:
    """The format of that name, loaded the first time it is asked for."""
    return known(kind, name, tokenizer) or await asyncio.to_thread(load, kind, name, tokenizer)


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"tool_parser": sorted(listed("tool")), "reasoning_parser": sorted(listed("reasoning"))}


__all__ = ["VLLMReasoningParser", "VLLMToolParser", "reasoning_parser", "tool_parser"]
