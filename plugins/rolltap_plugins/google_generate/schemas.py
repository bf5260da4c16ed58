"""Google's schemas as JSON Schema: the same words, most of them, in another spelling."""

from typing import Any

_COUNTS = frozenset({"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"})
"""Whole numbers of 64 bits, which Google's clients write as text."""

_GOOGLES_OWN = frozenset({"nullable", "propertyOrdering", "property_ordering"})


def json_schema(schema: Any) -> Any:
    """The schema in the words of JSON Schema; what is none stays as it is."""
    if isinstance(schema, list):
        return [json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    read = dict(_keyword(key, value) for key, value in schema.items() if key not in _GOOGLES_OWN)
    if schema.get("nullable") is True and isinstance(read.get("type"), str):
        read["type"] = [read["type"], "null"]
    return read


def _keyword(key: str, value: Any) -> tuple[str, Any]:
    match key, value:
        case "type", str():
            return key, value.lower()
        case "properties", dict():
            return key, {name: json_schema(inner) for name, inner in value.items()}
        case (("anyOf" | "any_of"), _):
            return "anyOf", json_schema(value)
        case "items", _:
            return key, json_schema(value)
        case _, str() if key in _COUNTS and value.isdecimal():
            return key, int(value)
    return key, value
