"""Items that a request names by their ids alone: they are put in the place of the reference, as the session gave them."""

import re
from collections.abc import Mapping
from typing import Any

from rolltap import BadRequest, ChatRequest, Choice, Completion, Message, Replies
from rolltap_plugins.openai_dialects.responses.replies import output

PREFIX = "resp_"
"""What the ids of replies begin with."""

_ITEM_ID = re.compile(r"(rs|msg|fc)_([^_]+)_([0-9]+)")


def items_of(reply_id: str, message: Message, request: ChatRequest | None = None) -> list[dict[str, Any]]:
    """The output items of a reply that was kept."""
    choice = Choice(
        text=message.text,
        reasoning=message.reasoning or "",
        tool_calls=list(message.tool_calls),
        extra=dict(message.extra),
    )
    completion = Completion(id=reply_id, model="", created=0, choices=[choice])
    return output(request or ChatRequest(), completion)


def resolved(body: dict[str, Any], replies: Replies) -> dict[str, Any]:
    """The body with the items themselves in place of references. Raises `BadRequest` for one that nobody gave."""
    items = body.get("input")
    if not isinstance(items, list) or not any(map(_is_reference, items)):
        return body
    given: set[str] = set()
    whole: list[Any] = []
    for at, item in enumerate(items):
        if not _is_reference(item):
            whole.append(item)
            continue
        found = _item(str(item["id"]), f"input[{at}].id", replies)
        if found["id"] not in given:  # a stream gives thinking and text in several items, the record in one
            whole.append(found)
        given.add(found["id"])
    return {**body, "input": whole}


def _is_reference(item: Any) -> bool:
    return (
        isinstance(item, Mapping)
        and isinstance(item.get("id"), str)
        and item.get("type") in ("item_reference", None)
        and not item.keys() - {"id", "type"}
    )


def _item(name: str, where: str, replies: Replies) -> dict[str, Any]:
    parts = _ITEM_ID.fullmatch(name)
    message = replies(PREFIX + parts[2]) if parts else None
    if parts and message is not None:
        number = parts[3] if parts[1] == "fc" else "0"
        for item in items_of(PREFIX + parts[2], message):
            if item["id"] == f"{parts[1]}_{parts[2]}_{number}":
                return item
    raise BadRequest(
        f"{where}: there is no item {name!r}: its reply was not kept in this session; send the item instead of its id.",
        param=where,
        code="item_not_found",
    )
