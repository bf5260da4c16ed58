"""What the case files' judge calls: the hermes parser behind the reader, whole and in pieces."""

from rolltap import Reasoning, ToolCall, ToolChoice
from rolltap.reading import OutputReader
from rolltap_plugins.hermes import HermesToolParser


def _choice(tool_choice):
    if isinstance(tool_choice, dict):
        return ToolChoice("named", tool_choice["function"]["name"])
    return ToolChoice(tool_choice or "auto")


def stream(chunks, tools, tool_choice):
    choice = _choice(tool_choice)
    parser = HermesToolParser() if tools and choice.mode != "none" else None
    reader = OutputReader(parser, tool_choice=choice)
    pieces = [piece for chunk in chunks for piece in reader.feed(chunk)] + reader.finish()
    calls = [piece for piece in pieces if isinstance(piece, ToolCall)]
    content = "".join(piece for piece in pieces if not isinstance(piece, ToolCall | Reasoning))
    return {
        "content": content or None,
        "tool_calls": [{"name": call.name, "arguments": call.arguments} for call in calls],
        "finish_reason": "tool_calls" if calls else "stop",
    }


def whole(text, tools, tool_choice):
    return stream([text], tools, tool_choice)
