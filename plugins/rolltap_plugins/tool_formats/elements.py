"""What the XML-like formats share: arguments as elements, whose values are raw text and typed by the tools' schemas."""

import json
from abc import abstractmethod
from typing import Any, ClassVar, Literal

from rolltap import TagToolParser, ToolCall
from rolltap.parsing import as_json

Schema = dict[str, Any]


def parameters_of(tools: list[dict[str, Any]]) -> dict[str, dict[str, Schema]]:
    """For each tool, in OpenAI's shape, its parameters' schemas. What is not shaped so has none."""
    schemas = {}
    for tool in tools:
        function = tool.get("function")
        parameters = function.get("parameters") if isinstance(function, dict) else None
        properties = parameters.get("properties") if isinstance(parameters, dict) else None
        if isinstance(function, dict) and isinstance(properties, dict):
            schemas[str(function.get("name"))] = properties
    return schemas


def _types(schema: Any) -> set[str]:
    """The JSON types that a schema allows; empty where it does not say."""
    if not isinstance(schema, dict):
        return set()
    named = schema.get("type")
    types = {named} if isinstance(named, str) else {item for item in named or () if isinstance(item, str)}
    for key in ("anyOf", "oneOf"):
        for option in schema.get(key) or ():
            types |= _types(option)
    if not types and isinstance(schema.get("enum"), list) and all(isinstance(v, str) for v in schema["enum"]):
        types = {"string"}
    return types


def typed(value: str, schema: Any, *, untyped: Literal["string", "json"]) -> str:
    """A raw value as the JSON text that its schema asks for, as the model wrote it wherever that is JSON.

    A value that is not of its type becomes a string: the client validates it and the model learns. Where the schema has
    no type, the format's own habit (`untyped`) decides.
    """
    types = _types(schema) or ({"string"} if untyped == "string" else {"any"})
    if "string" in types and not ("null" in types and value.strip() in ("null", "None")):
        return json.dumps(value, ensure_ascii=False)
    text = value.strip()
    if types == {"boolean"} and text.lower() in ("true", "false"):
        return text.lower()
    try:
        return as_json(text)[0]
    except ValueError:
        return json.dumps(value, ensure_ascii=False)


class ElementToolParser(TagToolParser):
    """A block whose arguments are elements. Marks inside a value are data, quoted calls too.

    A value ends at its closing mark only where a mark of `after_value` follows, and not inside a call that it quotes.
    """

    value_open: ClassVar[str]
    value_close: ClassVar[str]
    after_value: ClassVar[tuple[str, ...]]
    untyped: ClassVar[Literal["string", "json"]] = "string"

    def __init__(self, tools: list[dict[str, Any]] | None = None) -> None:
        super().__init__()
        self._schemas = parameters_of(tools or [])
        self._values: list[tuple[str, str]] = []
        """What stood before each value, and the value."""
        self._value: list[str] | None = None
        self._tentative = ""
        """A mark that ends the value if the next mark is as expected, else is part of it."""
        self._previous = ""
        self._quoted_calls = 0
        self._before_value = ""

    def begin_block(self) -> None:
        """Forget the block before."""
        self._values = []
        self._value = None
        self._tentative = self._previous = ""
        self._quoted_calls = 0

    def step(self, mark: str, before: str) -> Literal["inside", "closed", "broken"]:
        """Follow values: see the class."""
        previous, self._previous = self._previous, mark
        if self._tentative:
            self._confirm(mark, before)
        elif self._value is not None:
            self._value.append(before)
        if self._value is not None:
            return self._step_in_value(mark, before, previous)
        if mark == self.value_open:
            self._before_value = before
            self._value = []
            return "inside"
        if mark == self.close or mark in self.after_close():
            return "closed"
        return "broken" if mark in self.call_marks else "inside"

    def after_close(self) -> tuple[str, ...]:
        """Marks that may only follow a block's closing mark.

        Where there are any, a value's own closing mark may be left out, and they prove that the block is over.
        """
        return ()

    @abstractmethod
    def quotes_call(self, previous: str, before: str, mark: str) -> Literal[-1, 0, 1]:
        """Whether two marks inside a value, with `before` in between, begin (1) or end (-1) a quoted call."""

    def _confirm(self, mark: str, before: str) -> None:
        """Decide about the tentative end of a value, now that the next mark is known."""
        assert self._value is not None  # noqa: S101  # tentative: in a value
        expected = self.after_value if self._tentative == self.value_close else self.after_close()
        if not before.strip() and mark in expected:
            self._values.append((self._before_value, "".join(self._value)))
            self._value = None
        else:
            self._value += [self._tentative, before]
        self._tentative = ""

    def _step_in_value(self, mark: str, before: str, previous: str) -> Literal["inside"]:
        assert self._value is not None  # noqa: S101  # the caller looked
        if not self._quoted_calls:
            # All text so far, without a mark: the value's closing mark may have been left out.
            unmarked = len(self._value) == 1 and bool(self.after_close())
            if mark == self.value_close or (unmarked and mark == self.close):
                self._tentative = mark
                return "inside"
            if unmarked and mark == self.value_open and before.endswith("\n"):
                self._values.append((self._before_value, before))
                self._before_value = ""
                self._value = []
                return "inside"
        quoted = self.quotes_call(previous, before, mark)
        self._quoted_calls = max(0, self._quoted_calls + quoted)
        self._value.append(mark)
        return "inside"

    def call(self, name: str, values: list[tuple[str, str]]) -> ToolCall:
        """The call, with each value typed by the tool's schema."""
        schemas = self._schemas.get(name, {})
        pairs = (
            f"{json.dumps(key, ensure_ascii=False)}: {typed(value, schemas.get(key), untyped=self.untyped)}"
            for key, value in values
        )
        return ToolCall(name, "{" + ", ".join(pairs) + "}")
