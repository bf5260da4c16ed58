"""What a chat template can take and show, found out by rendering messages of our own with it."""

import secrets
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from rolltap.errors import BadRequest
from rolltap.rendering.template import ChatTemplate

MARK = f"mark{secrets.token_hex(8)}"
"""A random text. What a template does with a message is seen by looking for it in the rendered text."""

PROBE_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "probe",
            "description": "Looks something up.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string", "description": "What to look up."}},
                "required": ["query"],
            },
        },
    }
]
_USER = {"role": "user", "content": "Hello"}
_LONG_IDS = ("call_0123456789", "call_9876543210")
_SHORT_IDS = ("abcdef123", "abcdef456")

EmptyContent = str | list[dict[str, str]] | None
_EMPTY_CONTENTS: tuple[EmptyContent, ...] = (None, "", [{"type": "text", "text": ""}], [])


class TemplateCapabilities(Struct, frozen=True, kw_only=True):
    """What a chat template takes and shows. Found once for each model, by `find_capabilities`."""

    dict_arguments: bool = True
    """Arguments of calls are given as a dict; else as JSON text."""
    text_arguments: bool = False
    """JSON text works too. Arguments that are not a JSON object are then shown as they are."""
    shows_calls: bool = True
    """The template shows the tool calls of earlier turns."""
    shows_tool_results: bool = True
    """The template shows the results of tools. Where it does not, the model never sees them."""
    parallel_calls: Literal["shown", "first", "refused"] = "shown"
    """What becomes of several calls in one message: all shown, some left out, or the message refused."""
    empty_content: EmptyContent = None
    """The content of an assistant message that has calls and no text."""
    developer: bool = False
    """The template knows the developer role. Else developer messages become system messages."""
    systems: Literal["anywhere", "first", "nowhere"] = "anywhere"
    """Where system messages may stand. Elsewhere their text is given as a user's."""
    short_call_ids: bool = False
    """Ids of calls must be nine letters or digits, as in Mistral's templates."""
    named_call_ids: bool = False
    """A call is shown by its id alone. The id must name the tool, as Kimi K2's do: `functions.name:0`."""
    text_with_calls_and_reasoning: bool = True
    """An assistant message may have all three. Else its text is given as part of the reasoning."""


def find_capabilities(template: ChatTemplate) -> TemplateCapabilities:
    """Find out what the template takes and shows."""
    short_ids = not _calls_accepted(template, _LONG_IDS[0]) and _calls_accepted(template, _SHORT_IDS[0])
    identifiers = _SHORT_IDS if short_ids else _LONG_IDS
    as_dict, as_text = (_shows_arguments(template, form, identifiers[0]) for form in ("dict", "text"))
    takes_dict = as_dict or not as_text
    calls = [
        _call(identifier, _arguments(f"{MARK}{number}", as_dict=takes_dict))
        for number, identifier in enumerate(identifiers)
    ]
    empty_content = _empty_content(template, calls[0])
    return TemplateCapabilities(
        short_call_ids=short_ids,
        dict_arguments=takes_dict,
        text_arguments=as_text,
        shows_calls=as_dict or as_text,
        shows_tool_results=_shows_tool_results(template, calls[0], empty_content),
        parallel_calls=_parallel_calls(template, calls, empty_content),
        named_call_ids=_shows_ids_alone(template, calls[0]),
        empty_content=empty_content,
        developer="developer" in template.source(tools=False),
        systems=_systems(template),
        text_with_calls_and_reasoning=_takes_all_three(template, calls[0]),
    )


def _call(identifier: str, arguments: Any) -> dict[str, Any]:
    return {"id": identifier, "type": "function", "function": {"name": "probe", "arguments": arguments}}


def _arguments(query: str, *, as_dict: bool) -> Any:
    return {"query": query} if as_dict else f'{{"query": "{query}"}}'


def _calling(calls: Sequence[dict[str, Any]], content: EmptyContent) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def _result(call: dict[str, Any], content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": call["id"], "name": "probe"}


def _try(template: ChatTemplate, messages: list[dict[str, Any]], *, tools: bool = True) -> str | None:
    """What the template renders; None where it refuses."""
    try:
        return template.render(messages, tools=PROBE_TOOLS if tools else ())
    except BadRequest:
        return None


def _calls_accepted(template: ChatTemplate, identifier: str) -> bool:
    """Whether a call with such an id and its result are taken, in either form of arguments."""
    calls = [_call(identifier, _arguments(MARK, as_dict=as_dict)) for as_dict in (True, False)]
    return any(
        _try(template, [_USER, _calling([call], ""), _result(call, "Found")]) is not None for call in calls
    )


def _shows_arguments(template: ChatTemplate, form: str, identifier: str) -> bool:
    call = _call(identifier, _arguments(MARK, as_dict=form == "dict"))
    text = _try(template, [_USER, _calling([call], "")])
    # In single quotes it is Python's spelling of a dict, which no model was trained on. Behind a backslash it is JSON
    # inside a JSON string.
    return text is not None and MARK in text and f"'{MARK}'" not in text and f'\\"{MARK}' not in text


def _shows_ids_alone(template: ChatTemplate, call: dict[str, Any]) -> bool:
    text = _try(template, [_USER, _calling([call], "")], tools=False)
    return text is not None and call["id"] in text and "probe" not in text


def _empty_content(template: ChatTemplate, call: dict[str, Any]) -> EmptyContent:
    """The form of no content that the template takes in most places: a message may be read only when it is not last."""
    answer = {"role": "assistant", "content": "Hello yourself."}
    followers: tuple[list[dict[str, Any]], ...] = (
        [],
        [_result(call, "Found")],
        [_result(call, "Found"), answer, _USER],
        [_USER],
    )

    def places(content: EmptyContent) -> int:
        texts = [_try(template, [_USER, _calling([call], content), *rest]) for rest in followers]
        return sum(text is not None and "None" not in text for text in texts)

    # `max` gives the first of equals.
    best = max(_EMPTY_CONTENTS, key=places)
    return best if places(best) else ""


def _shows_tool_results(template: ChatTemplate, call: dict[str, Any], empty_content: EmptyContent) -> bool:
    text = _try(template, [_USER, _calling([call], empty_content), _result(call, f"{MARK}-result")])
    return text is not None and f"{MARK}-result" in text


def _parallel_calls(
    template: ChatTemplate, calls: Sequence[dict[str, Any]], empty_content: EmptyContent
) -> Literal["shown", "first", "refused"]:
    results = [_result(call, "Found") for call in calls]
    one = _try(template, [_USER, _calling(calls[:1], empty_content), results[0]])
    several = _try(template, [_USER, _calling(calls, empty_content), *results])
    if several is None:
        # A template that refuses one call as well has nothing against several.
        return "shown" if one is None else "refused"
    if one is not None and f"{MARK}0" in one and not (f"{MARK}0" in several and f"{MARK}1" in several):
        return "first"
    return "shown"


def _takes_all_three(template: ChatTemplate, call: dict[str, Any]) -> bool:
    message = _calling([call], "Looking it up.")
    if _try(template, [_USER, message]) is None:
        return True  # it refuses calls or text beside them, whatever the reasoning
    return _try(template, [_USER, {**message, "reasoning_content": "Hm.", "thinking": "Hm."}]) is not None


def _systems(template: ChatTemplate) -> Literal["anywhere", "first", "nowhere"]:
    def shown_in_order(*roles: str) -> bool:
        marks = [f"{MARK}{index}." for index in range(len(roles))]
        messages = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
        text = _try(template, messages, tools=False)
        if text is None:
            return False
        places = [text.find(mark) for mark in marks]
        return -1 not in places and places == sorted(places)

    if shown_in_order("system", "system", "user", "system", "assistant", "user", "system"):
        return "anywhere"
    return "first" if shown_in_order("system", "user") else "nowhere"
