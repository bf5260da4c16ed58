"""JSON in a model's text: where a value ends while the text still comes, and what nearly-JSON means.

Models write JSON with Python's quotes and names, with raw line ends inside strings, with a comma too many. Where such
text has one meaning it is read; where a value was cut off or could mean two things it is not.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

_SPACE = re.compile(r"[ \t\r\n]*+")
_STRING_BODY = {
    '"': re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL),
    "'": re.compile(r"(?:[^'\\]++|\\.)*+", re.DOTALL),
}
_SCALAR_PART = re.compile(r"[\w.+-]*+")
_SCALAR_TEXT = r"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null|True|False|None)"
_SCALAR = re.compile(_SCALAR_TEXT)
_STRING_TEXT = r'"(?:[^"\\]++|\\.)*+"'
_SPACE_TEXT = r"[ \t\r\n]*+"
_ITEMS = re.compile(rf"(?:{_SPACE_TEXT}(?:{_SCALAR_TEXT}|{_STRING_TEXT}){_SPACE_TEXT},)++", re.DOTALL)
_MEMBERS = re.compile(
    rf"(?:{_SPACE_TEXT}{_STRING_TEXT}{_SPACE_TEXT}:{_SPACE_TEXT}(?:{_SCALAR_TEXT}|{_STRING_TEXT}){_SPACE_TEXT},)++",
    re.DOTALL,
)
_CLOSER = {"{": "}", "[": "]"}
_MAX_DEPTH = 200
"""Deeper nesting is no tool call, and would overflow the stack of those who decode it."""
_MAX_WAITING = 64
"""Characters in small pieces that are looked at together."""

# What the grammar allows next.
_KEY, _COLON, _VALUE, _ITEM, _NEXT = "key or }", ":", "value", "value or ]", ", or the end"


class JsonScanner:
    """Follows one JSON object or array, piece by piece, until it ends or can't be one.

    Each character is looked at once, so the cost is linear however the text is cut. The grammar is JSON's, widened by
    what `as_json` is able to repair. All positions count from the first character that was ever fed.
    """

    __slots__ = (
        "_escaped",
        "_expect",
        "_offset",
        "_quote",
        "_scalar",
        "_stack",
        "_waiting",
        "_waiting_size",
        "end",
        "failed_at",
        "string",
    )

    def __init__(self) -> None:
        self.end: int | None = None
        """Where the value is over, once it is."""
        self.failed_at: int | None = None
        """The first character that no JSON value has there, once there is one."""
        self.string: tuple[int, int] | None = None
        """Start and end of the last string, where nothing but white space came after it."""
        self._stack: list[str] = []
        self._expect = _VALUE
        self._quote = ""
        self._escaped = False
        self._scalar: list[str] = []
        self._offset = 0
        self._waiting: list[str] = []
        self._waiting_size = 0

    @property
    def lacks_only_brace(self) -> bool:
        """Whether a lone `}` would have ended the object where the scanner failed."""
        return self._expect is _NEXT and self._stack == ["{"]

    def feed(self, text: str, last: bool = False) -> bool:
        """Take the next piece; True once `end` or `failed_at` is known.

        Small pieces that can't end the value wait and are looked at together, unless this is the `last`.
        """
        self._waiting.append(text)
        self._waiting_size += len(text)
        if not last and self._waiting_size < _MAX_WAITING and "}" not in text and "]" not in text:
            return False
        text = "".join(self._waiting)
        self._waiting.clear()
        self._waiting_size = 0
        return self._scan(text)

    def _scan(self, text: str) -> bool:
        position, size = 0, len(text)
        while position < size:
            if self._quote:
                position = self._in_string(text, position)
            elif self._scalar:
                position = self._in_scalar(text, position)
            else:
                position = self._skip_simple(text, position)
                if position < size:
                    self._token(text[position], self._offset + position)
                    position += not self._scalar
            if self.end is not None or self.failed_at is not None:
                return True
        self._offset += size
        return False

    def _skip_simple(self, text: str, position: int) -> int:
        """Take white space and, all at once, any whole members or items that are strings or scalars."""
        if self._expect is _KEY or self._expect is _ITEM:
            simple = (_MEMBERS if self._expect is _KEY else _ITEMS).match(text, position)
            if simple is not None:
                position = simple.end()
                self.string = None
        return _SPACE.match(text, position).end()  # type: ignore[union-attr]  # matches ""

    def _in_string(self, text: str, position: int) -> int:
        if self._escaped:
            self._escaped = False
            return position + 1
        position = _STRING_BODY[self._quote].match(text, position).end()  # type: ignore[union-attr]  # matches ""
        if position == len(text):
            return position
        if text[position] == "\\":  # the last character of this piece
            self._escaped = True
            return position + 1
        self._quote = ""
        self.string = (self.string[0] if self.string else 0, self._offset + position + 1)
        self._expect = _COLON if self._expect is _KEY else _NEXT
        return position + 1

    def _in_scalar(self, text: str, position: int) -> int:
        end = _SCALAR_PART.match(text, position).end()  # type: ignore[union-attr]  # matches ""
        self._scalar.append(text[position:end])
        if end < len(text):
            scalar = "".join(self._scalar)
            self._scalar = []
            if _SCALAR.fullmatch(scalar):
                self._expect = _NEXT
            else:
                self.failed_at = self._offset + end - len(scalar)
        return end

    def _token(self, char: str, at: int) -> None:
        """Take the first character of a token, which stands at `at`."""
        expect = self._expect
        if char in "\"'" and expect in (_KEY, _VALUE, _ITEM):
            self._quote = char
            self.string = (at, at)
        elif char in "{[" and expect in (_VALUE, _ITEM) and len(self._stack) < _MAX_DEPTH:
            self._stack.append(char)
            self._expect = _KEY if char == "{" else _ITEM
        elif char in "}]" and expect in (_KEY, _ITEM, _NEXT) and char == _CLOSER[self._stack[-1]]:
            self._stack.pop()
            self._expect = _NEXT
            if not self._stack:
                self.end = at + 1
        elif char == "," and expect is _NEXT:
            self._expect = _KEY if self._stack[-1] == "{" else _ITEM
        elif char == ":" and expect is _COLON:
            self._expect = _VALUE
        elif char in "-0123456789tfnTFN" and expect in (_VALUE, _ITEM):
            self._scalar = [""]
        else:
            self.failed_at = at
        if not self._quote and self.failed_at is None:
            self.string = None


_ODD_TOKEN = re.compile(
    r"""
    "(?:[^"\\]++|\\.)*+"
    | '(?:[^'\\]++|\\.)*+'
    | \b(?:True|False|None)\b
    | ,(?=\s*[}\]])
    """,
    re.DOTALL | re.VERBOSE,
)
_ODD_CHARACTER = re.compile(
    r'\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|U[0-9a-fA-F]{8}|.)|["\x00-\x1f]', re.DOTALL
)
_WORDS = {"True": "true", "False": "false", "None": "null", ",": ""}


def _json_character(match: re.Match[str]) -> str:
    odd = match.group()
    if len(odd) == 1:
        return json.dumps(odd)[1:-1]
    if len(odd) > 2:  # an escape by number: Python has more of them
        digits = odd[2:]
        return odd if odd[1] == "u" else json.dumps(chr(int(digits, 16)))[1:-1]
    if odd[1] in '"\\/bfnrt':
        return odd
    if odd[1] == "'":
        return "'"
    if odd[1] in "aNUuvx01234567\n\r":
        raise ValueError(f"the escape {odd!r} has no one meaning")
    return f"\\{odd}"  # no escape in either language: Python keeps the backslash


def _json_token(match: re.Match[str]) -> str:
    odd = match.group()
    if odd[0] in "\"'":
        return f'"{_ODD_CHARACTER.sub(_json_character, odd[1:-1])}"'
    return _WORDS[odd]


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _integer(digits: str) -> int | float:
    """An integer; one that is too long for `int` has its place in JSON all the same."""
    return int(digits) if len(digits) < 4000 else float(digits)


_decoder = json.JSONDecoder(parse_constant=_no_constant, parse_int=_integer)


def as_json(text: str) -> tuple[str, Any]:
    """The text as valid JSON, and its value.

    Valid JSON comes back as it is. Otherwise Python's quotes, escapes and names, raw control characters in strings and
    trailing commas are rewritten and nothing else: numbers, key order and Unicode stay as they were written.
    Raises ValueError where that does not make it JSON.
    """
    try:
        try:
            return text, _decoder.decode(text)
        except ValueError:
            text = _ODD_TOKEN.sub(_json_token, text)
            return text, _decoder.decode(text)
    except (
        RecursionError,
        OverflowError,
    ) as error:  # nested too deeply; a character that Unicode does not have
        raise ValueError(str(error)) from None


def members(text: str) -> Iterator[tuple[str, Any, str]]:
    """The members of an object or array that is valid JSON: key ("" in an array), value, the value as it is written."""
    is_object = text.lstrip(" \t\r\n")[0] == "{"
    position = _skip(text, _skip(text, 0) + 1)
    while text[position] not in "}]":
        key = ""
        if is_object:
            key, position = _decoder.raw_decode(text, position)
            position = _skip(text, _skip(text, position) + 1)
        value, end = _decoder.raw_decode(text, position)
        yield key, value, text[position:end]
        position = _skip(text, end)
        if text[position] == ",":
            position = _skip(text, position + 1)


def _skip(text: str, position: int) -> int:
    return _SPACE.match(text, position).end()  # type: ignore[union-attr]  # matches ""
