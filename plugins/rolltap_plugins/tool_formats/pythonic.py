"""The pythonic format of Llama 3.2, Llama 4 and others: the output is a Python list of calls, `[name(key="value")]`."""

import ast
import json
import re
import warnings
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from rolltap import ToolCall, ToolParser
from rolltap.parsing import as_json

_BEGINS = re.compile(r"\s*+\[\s*+[A-Za-z_][\w.]*+\s*+\(")
_MAY_BEGIN = re.compile(r"\s*+(?:\[\s*+(?:[A-Za-z_][\w.]{0,128}+\s*+)?)?")
_TOKEN = re.compile(
    r"""
    '''(?:[^\\]|\\.)*?''' | \"""(?:[^\\]|\\.)*?\"""
    | '(?:[^'\\\n]++|\\.)*+' | "(?:[^"\\\n]++|\\.)*+"
    | [\[({] | [\])}]
    """,
    re.DOTALL | re.VERBOSE,
)


class PythonicToolParser(ToolParser):
    """Reads an output that begins with a list of calls; text after the list is content.

    The list is read when the output is over: it is all there is of nearly every output that has one.
    """

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._begun = False
        self._is_text = False

    def feed(self, text: str) -> Sequence[str | ToolCall]:
        """Give text at once, unless the output begins as a list of calls does."""
        if self._is_text:
            return [text] if text else []
        self._waiting.append(text)
        if self._begun or text.isspace():
            return []
        so_far = "".join(self._waiting)
        self._begun = _BEGINS.match(so_far) is not None
        if self._begun or _MAY_BEGIN.fullmatch(so_far):
            return []
        self._is_text = True
        return [so_far]

    def finish(self) -> Sequence[str | ToolCall]:
        """Read the list."""
        text = "" if self._is_text else "".join(self._waiting)
        end = _list_end(text) if self._begun else 0
        calls = calls_from_python(text[:end].strip()) if end else None
        if not calls:
            return [text] if text else []
        return [*calls, text[end:]] if text[end:] else calls


def _list_end(text: str) -> int:
    """Where the list is over that the text begins with; 0 where it isn't."""
    depth = 0
    for token in _TOKEN.finditer(text):
        if token.group() in ("[", "(", "{"):
            depth += 1
        elif token.group() in ("]", ")", "}"):
            depth -= 1
            if depth == 0:
                return token.end()
    return 0


def calls_from_python(source: str) -> list[ToolCall] | None:
    """The calls in a Python list of calls with keyword arguments; None where the source is anything else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            listed = ast.parse(source, mode="eval").body
            if not isinstance(listed, ast.List):
                return None
            segments = _Segments(source)
            return [_call(node, segments) for node in listed.elts]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


class _Segments:
    """The source text of nodes; ast counts in bytes of UTF-8."""

    def __init__(self, source: str) -> None:
        self._data = source.encode()
        self._starts = [0, *accumulate(map(len, self._data.splitlines(keepends=True)))]

    def of(self, node: ast.expr) -> str:
        assert node.end_lineno is not None  # noqa: S101  # parsed from source
        assert node.end_col_offset is not None  # noqa: S101
        start = self._starts[node.lineno - 1] + node.col_offset
        return self._data[start : self._starts[node.end_lineno - 1] + node.end_col_offset].decode()


def _call(node: ast.expr, segments: _Segments) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call by keyword")
    name = segments.of(node.func)
    if not re.fullmatch(r"[\w.]+", name):
        raise ValueError(f"{name!r} names no tool")
    pairs = []
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("** has no name")
        pairs.append(f"{_dumps(keyword.arg)}: {_value(keyword.value, segments)}")
    return ToolCall(name, "{" + ", ".join(pairs) + "}")


def _value(node: ast.expr, segments: _Segments) -> str:
    """A literal as JSON: numbers as they are written, where JSON writes them so."""
    source = segments.of(node)
    if "\\" not in source:  # escapes are Python's here
        try:
            return as_json(source)[0]
        except ValueError:
            pass
    return _dumps(ast.literal_eval(node))


def _dumps(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if _is_unicode(text) else json.dumps(value)


def _is_unicode(text: str) -> bool:
    """Whether no escape left half a character behind, which could not be sent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


NAMES = ("pythonic", "llama3_pythonic", "llama4_pythonic")


tool_parser = dict.fromkeys(NAMES, PythonicToolParser)
