"""Freeform ("custom") tools: to every model a function with one string, and to the client what that string says.

A call's arguments are then `{"input": "…"}`, of which the client is sent the text alone, also while it is written.
"""

import re
from collections.abc import Mapping
from typing import Any

import orjson

from rolltap import ToolCallDelta
from rolltap_plugins.wire import json_text

FIELD = "input"
"""The function's only parameter."""

_OPENING = re.compile(r'\s*+\{\s*+"input"\s*+:\s*+"')
_SO_FAR = re.compile(r'\s*+(?:\{\s*+(?:"(?:i(?:n(?:p(?:u(?:t(?:"\s*+(?::\s*+)?)?)?)?)?)?)?)?)?$')
"""Text that may yet become an opening."""
_PIECE = re.compile(
    r"""
    (?P<plain> [^"\\]++)
    | \\u(?P<pair> [dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})
    | \\u(?P<unit> [0-9a-fA-F]{4})
    | \\(?P<short> [^u])
    """,
    re.VERBOSE | re.DOTALL,
)
"""A part of a JSON string that is whole; line ends stand for themselves, as some models write them."""
_MAY_BE_A_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?$")
_SHORT = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}


def as_function(name: str, description: str | None, form: Any) -> dict[str, Any]:
    """The tool as a function in Chat Completions' shape. A grammar, which no schema can say, is told in words."""
    told = [description or ""]
    if isinstance(form, Mapping) and form.get("type") == "grammar":
        grammar = form.get("grammar", form)  # Chat Completions has an object inside, Responses has none
        if isinstance(grammar, Mapping):
            told.append(
                f"The input must follow this {grammar.get('syntax')} grammar:\n{grammar.get('definition')}"
            )
    function: dict[str, Any] = {"name": name}
    text = "\n\n".join(filter(None, told))
    if text:
        function["description"] = text
    field = {"type": "string", "description": "The tool's whole input, as free text."}
    function["parameters"] = {"type": "object", "properties": {FIELD: field}, "required": [FIELD]}
    return {"type": "function", "function": function}


def as_arguments(text: str) -> str:
    """The arguments of the call whose input this is."""
    return json_text({FIELD: text})


def as_input(arguments: str) -> str:
    """The input that a call's arguments hold; all of them where they are something else."""
    reader = InputReader()
    return reader.feed(arguments) + reader.finish()


class InputReader:
    """Reads the input out of arguments that come in pieces: what it gives, joined, is the same however they were cut."""

    def __init__(self) -> None:
        self._waiting = ""
        self._begun = False
        self._over = False
        self._other = False
        """Whether the arguments are something else, and are given as they are at the end."""

    def feed(self, fragment: str) -> str:
        """Take the next piece; give what of the input is certain now."""
        if self._over:
            return ""
        self._waiting += fragment
        if self._other:
            return ""
        if not self._begun:
            opening = _OPENING.match(self._waiting)
            if opening is None:
                self._other = _SO_FAR.match(self._waiting) is None
                return ""
            self._begun, self._waiting = True, self._waiting[opening.end() :]
        return self._said()

    def finish(self) -> str:
        """The call is over: give the rest."""
        if self._over:
            return ""
        if self._begun:
            return self._said(last=True)
        try:
            value = orjson.loads(self._waiting or "{}")
        except orjson.JSONDecodeError:
            return self._waiting
        return "" if value == {} else self._waiting

    def _said(self, *, last: bool = False) -> str:
        """What is whole of the string: all but an escape that is still being written."""
        said, text, at = [], self._waiting, 0
        while piece := _PIECE.match(text, at):
            if piece["unit"] and not last and _MAY_BE_A_PAIR.match(text, at):
                break
            said.append(_meant(piece))
            at = piece.end()
        self._waiting = text[at:]
        self._over = self._waiting.startswith('"')
        if not self._over and re.match(r"\\u[0-9a-fA-F]{0,3}[^0-9a-fA-F]", self._waiting):
            said.append("\\u")  # no escape of JSON's: it stands for itself
            self._waiting = self._waiting[2:]
            said.append(self._said(last=last))
        return "".join(said)


def _meant(piece: "re.Match[str]") -> str:
    """The text that a part of a JSON string stands for."""
    if piece["plain"]:
        return piece["plain"]
    if pair := piece["pair"]:
        high, low = int(pair[:4], 16), int(pair[6:], 16)
        return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
    if unit := piece["unit"]:
        code = int(unit, 16)
        return "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)
    return _SHORT.get(piece["short"], piece[0])


class CustomCalls:
    """The calls of freeform tools in a streamed reply: their fragments as pieces of the input."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._readers: dict[tuple[int, int], InputReader] = {}

    def piece(self, choice: int, fragment: ToolCallDelta) -> str | None:
        """The next piece of the input; None where the fragment is of another kind of call."""
        key = choice, fragment.index
        if fragment.name is not None and fragment.name in self._names:
            self._readers.setdefault(key, InputReader())
        reader = self._readers.get(key)
        return None if reader is None else reader.feed(fragment.arguments)

    def rest(self, choice: int) -> list[tuple[int, str]]:
        """The ends of a choice's inputs: each call's number, and what was held back of it."""
        return [(number, reader.finish()) for (at, number), reader in self._readers.items() if at == choice]
