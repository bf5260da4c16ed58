"""A call's arguments while they are written: what of their JSON is certain to stay as it is."""

import re

_SCALAR = r"(?:-?[0-9][0-9.eE+-]*+ | true | false | null)(?=[ \t\r\n,}\]])"
_OUTSIDE = re.compile(
    rf"""
    [ \t\r\n{{\[:]++
    | [}}\]]
    | {_SCALAR}
    | ,[ \t\r\n]*+(?: [{{\[] | (?=") | {_SCALAR})
    """,
    re.VERBOSE,
)
"""JSON outside of strings, as far as it is certain: a comma too many and Python's names wait."""
_INSIDE = re.compile(r'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))++')
"""JSON inside of a string; raw line ends and Python's escapes wait."""
_MAX_WAITING = 1024
"""Text that waits for longer is nearly-JSON, which is rewritten once it is whole."""


class ArgumentStream:
    """Gives an object's text in pieces, each as soon as it is certain.

    What has been given is the beginning of what `as_json` makes of the whole object. Where the text is no JSON but only
    nearly, nothing more is given.
    """

    def __init__(self) -> None:
        self._waiting = ""
        self._depth = 0
        self._in_string = False
        self._over = False
        self._given: list[str] = []

    @property
    def given(self) -> str:
        """All that `feed` returned."""
        return "".join(self._given)

    def feed(self, text: str) -> str:
        """Take the next piece of text, what follows the object included; give what is certain now."""
        if self._over:
            return ""
        text = self._waiting + text
        position, size = 0, len(text)
        while position < size and not self._over:
            end = self._string_part(text, position) if self._in_string else self._other_part(text, position)
            if end == position:
                break
            position = end
        self._waiting = text[position:]
        if len(self._waiting) > _MAX_WAITING:
            self._over = True
        self._given.append(text[:position])
        return text[:position]

    def _string_part(self, text: str, position: int) -> int:
        if text[position] == '"':
            self._in_string = False
            return position + 1
        part = _INSIDE.match(text, position)
        return part.end() if part else position

    def _other_part(self, text: str, position: int) -> int:
        if text[position] == '"':
            self._in_string = True
            return position + 1
        part = _OUTSIDE.match(text, position)
        if part is None:
            return position
        self._depth += part[0].count("{") + part[0].count("[") - (part[0] in "}]")
        self._over = self._depth == 0 and part[0] in "}]"
        return part.end()
