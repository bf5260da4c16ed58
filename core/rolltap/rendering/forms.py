"""Finding out, by trying, in which form a chat template takes messages."""

import secrets
from typing import Any, Literal

from rolltap.errors import BadRequest
from rolltap.rendering.messages import MessageForm
from rolltap.rendering.template import ChatTemplate

MARK = f"mark{secrets.token_hex(8)}"
"""Text that nobody else writes: a message that carries it can be found in what a template renders."""

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
_LONG_ID, _SHORT_ID = "call_0123456789", "abcdef123"


def find_form(template: ChatTemplate) -> MessageForm:
    """The form of messages that the template takes."""
    short_ids = not _calls_accepted(template, _LONG_ID) and _calls_accepted(template, _SHORT_ID)
    identifier = _SHORT_ID if short_ids else _LONG_ID
    as_dict, as_text = (_shows_arguments(template, form, identifier) for form in ("dict", "text"))
    takes_dict = as_dict or not as_text
    return MessageForm(
        short_call_ids=short_ids,
        dict_arguments=takes_dict,
        text_arguments=as_text,
        shows_calls=as_dict or as_text,
        named_call_ids=_shows_ids_alone(template, identifier, takes_dict=takes_dict),
        empty_content=_empty_content(template, identifier, takes_dict=takes_dict),
        developer="developer" in template.source(tools=False),
        systems=_systems(template),
        text_with_calls_and_reasoning=_takes_all_three(template, identifier, takes_dict=takes_dict),
    )


def _call(identifier: str, arguments: Any) -> dict[str, Any]:
    return {"id": identifier, "type": "function", "function": {"name": "probe", "arguments": arguments}}


def _arguments(*, as_dict: bool) -> Any:
    return {"query": MARK} if as_dict else f'{{"query": "{MARK}"}}'


def _try(template: ChatTemplate, messages: list[dict[str, Any]], *, tools: bool = True) -> str | None:
    """What the template renders; None where it refuses."""
    try:
        return template.render(messages, tools=PROBE_TOOLS if tools else ())
    except BadRequest:
        return None


def _calls_accepted(template: ChatTemplate, identifier: str) -> bool:
    """Whether a call with such an id and its result are taken, in either form of arguments."""
    result = {"role": "tool", "content": "Found", "tool_call_id": identifier, "name": "probe"}
    return any(
        _try(template, [_USER, {"role": "assistant", "content": "", "tool_calls": [call]}, result])
        is not None
        for call in (_call(identifier, _arguments(as_dict=as_dict)) for as_dict in (True, False))
    )


def _shows_arguments(template: ChatTemplate, form: str, identifier: str) -> bool:
    call = _call(identifier, _arguments(as_dict=form == "dict"))
    text = _try(template, [_USER, {"role": "assistant", "content": "", "tool_calls": [call]}])
    # In single quotes it is Python's own spelling of a dict, which no model was trained on; behind a backslash it is
    # JSON inside a JSON string.
    return text is not None and MARK in text and f"'{MARK}'" not in text and f'\\"{MARK}' not in text


def _shows_ids_alone(template: ChatTemplate, identifier: str, *, takes_dict: bool) -> bool:
    call = _call(identifier, _arguments(as_dict=takes_dict))
    text = _try(template, [_USER, {"role": "assistant", "content": "", "tool_calls": [call]}], tools=False)
    return text is not None and identifier in text and "probe" not in text


def _empty_content(template: ChatTemplate, identifier: str, *, takes_dict: bool) -> str | None:
    call = _call(identifier, _arguments(as_dict=takes_dict))
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    text = _try(template, [_USER, message])
    return None if text is not None and "None" not in text else ""


def _takes_all_three(template: ChatTemplate, identifier: str, *, takes_dict: bool) -> bool:
    message = {
        "role": "assistant",
        "content": "Looking it up.",
        "tool_calls": [_call(identifier, _arguments(as_dict=takes_dict))],
    }
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
