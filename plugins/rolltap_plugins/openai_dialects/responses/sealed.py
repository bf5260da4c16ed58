"""What clients carry unread from one request to the next, in the field `encrypted_content` of their items.

It is no secret: the field is the one that every client sends back as it came.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import orjson

_MARK = "rolltap:"

SUMMARY = "summary"
"""The field of a compaction that has the conversation's summary."""


def sealed(fields: Mapping[str, Any]) -> str:
    """The fields as one word."""
    return _MARK + base64.urlsafe_b64encode(orjson.dumps(fields)).decode()


def opened(text: str) -> dict[str, Any] | None:
    """The fields that `sealed` made a word of; None for another server's word."""
    if not text.startswith(_MARK):
        return None
    try:
        value = orjson.loads(base64.urlsafe_b64decode(text.removeprefix(_MARK)))
    except (binascii.Error, ValueError):
        return None
    return value if isinstance(value, dict) else None
