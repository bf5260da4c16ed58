"""Run in vLLM's environment: reads texts with vLLM's parsers through rolltap's plugin, whole and cut into characters.

On standard input `{"tools": […], "cases": [{"kind", "name", "text", "tokenizer": FOLDER}, …]}`; on standard output a list
with, for each case, `{"whole": PIECES, "cut": PIECES, "error": ""}`.
"""

import asyncio
import json
import sys
from typing import Any

from transformers import AutoTokenizer

from rolltap import Reasoning, RolltapError, ToolCall
from rolltap_plugins import vllm_parsers


def pieces(parser: Any, parts: list[str]) -> list[Any]:
    """What the parser makes of the parts, neighbouring text joined."""
    joined: list[Any] = []
    for item in [*(one for part in parts for one in parser.feed(part)), *parser.finish()]:
        if isinstance(item, ToolCall):
            joined.append({"name": item.name, "arguments": item.arguments, "id": item.id})
        elif isinstance(item, Reasoning):
            joined.append({"reasoning": item.text})
        elif item and joined and isinstance(joined[-1], str):
            joined[-1] += item
        elif item:
            joined.append(item)
    return joined


async def read(case: dict[str, str], tools: list[dict[str, Any]], tokenizer: Any) -> dict[str, Any]:
    try:
        if case["kind"] == "tool":
            make = await vllm_parsers.tool_parser(case["name"], tools, tokenizer)
        else:
            make = await vllm_parsers.reasoning_parser(case["name"], tokenizer)
    except RolltapError as error:
        return {"whole": [], "cut": [], "error": str(error)}
    if make is None:
        return {"whole": [], "cut": [], "error": "no such name"}
    text = case["text"]
    return {"whole": pieces(make(), [text]), "cut": pieces(make(), list(text)), "error": ""}


async def main() -> None:
    assert "vllm" not in sys.modules
    asked = json.load(sys.stdin)
    folders = {case["tokenizer"] for case in asked["cases"]}
    tokenizers = {folder: AutoTokenizer.from_pretrained(folder) for folder in folders}
    answers = [await read(case, asked["tools"], tokenizers[case["tokenizer"]]) for case in asked["cases"]]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main())
