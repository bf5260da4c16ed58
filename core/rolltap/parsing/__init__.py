"""What parsers of tool calls and of thinking are made of: bases for formats of marks, and readers of lenient JSON."""

from rolltap.bases.parsers import CallFragment, Reasoning, ReasoningParser, ToolParser
from rolltap.parsing.calls import arguments_from_json, calls_from_json
from rolltap.parsing.json_parsing import JsonToolParser
from rolltap.parsing.json_text import as_json
from rolltap.parsing.marks import Marks, mark_pattern
from rolltap.parsing.tag_parsing import TagToolParser
from rolltap.parsing.tag_reasoning import TagReasoningParser

__all__ = [
    "CallFragment",
    "JsonToolParser",
    "Marks",
    "Reasoning",
    "ReasoningParser",
    "TagReasoningParser",
    "TagToolParser",
    "ToolParser",
    "arguments_from_json",
    "as_json",
    "calls_from_json",
    "mark_pattern",
]
