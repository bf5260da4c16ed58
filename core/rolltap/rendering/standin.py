"""Stand-ins for the recorded part of a conversation: the same kinds of messages, next to no text."""

from collections.abc import Callable, Sequence
from typing import Any

from rolltap.rendering.forms import MARK
from rolltap.rendering.messages import SYSTEM_ROLES, MessageForm, as_dict
from rolltap.types.chat import Message, ToolCall

StandIn = Callable[[Sequence[Message], MessageForm], list[dict[str, Any]]]

_WORD = "x"
_USER = Message(role="user", content=_WORD)
_ANSWER = Message(role="assistant", content=_WORD)


def last_assistant(message: Message, form: MessageForm) -> dict[str, Any]:
    """A message like this assistant's, with the same calls, that ends in MARK."""
    if not (message.tool_calls and form.shows_calls):
        return as_dict(Message(role="assistant", content=MARK), form)
    *others, last = message.tool_calls
    calls = (
        *(ToolCall(name=call.name, id=call.id) for call in others),
        ToolCall(name=last.name, id=last.id, arguments=f'{{"a": "{MARK}"}}'),
    )
    content = MARK if message.text else None  # some templates show it behind the calls
    return as_dict(Message(role="assistant", content=content, tool_calls=calls), form)


def last_turn(old: Sequence[Message], form: MessageForm) -> list[dict[str, Any]]:
    """The system messages, a user's, and the last assistant's: enough for nearly all templates."""
    return [*_systems(old, form), as_dict(_USER, form), last_assistant(old[-1], form)]


def with_a_call(old: Sequence[Message], form: MessageForm) -> list[dict[str, Any]]:
    """With one earlier call and its results too, where there were any: DeepSeek's templates remember the first."""
    start, end = _first_call(old[:-1])
    if start == end:
        return last_turn(old, form)
    early = [_short(message, form) for message in (_USER, *old[start:end], _ANSWER, _USER)]
    return [*_systems(old, form), *early, last_assistant(old[-1], form)]


def all_roles(old: Sequence[Message], form: MessageForm) -> list[dict[str, Any]]:
    """Every message: for templates that look at more. Takes time in proportion to the number of messages."""
    return [*(_short(message, form) for message in old[:-1]), last_assistant(old[-1], form)]


STAND_INS: tuple[StandIn, ...] = (last_turn, with_a_call, all_roles)
"""From the cheapest to the one that is always right."""


def _systems(old: Sequence[Message], form: MessageForm) -> list[dict[str, Any]]:
    """The leading system messages, whole: some templates repeat them in a later turn."""
    systems = []
    for message in old:
        if message.role not in SYSTEM_ROLES:
            break
        systems.append(as_dict(message, form))
    return systems


def _first_call(messages: Sequence[Message]) -> tuple[int, int]:
    """Where the first calls with results stand, or else the first calls; an empty span where there are none."""
    found = 0, 0
    for start, message in enumerate(messages):
        if not message.tool_calls:
            continue
        end = start + 1
        while end < len(messages) and messages[end].role == "tool":
            end += 1
        if end > start + 1:
            return start, end
        if found == (0, 0):
            found = start, end
    return found


def _short(message: Message, form: MessageForm) -> dict[str, Any]:
    if message.role in SYSTEM_ROLES:
        return as_dict(message, form)
    short = Message(
        role=message.role,
        content=_WORD if message.text or not message.tool_calls else None,
        tool_calls=tuple(ToolCall(name=call.name, id=call.id) for call in message.tool_calls),
        tool_call_id=message.tool_call_id,
        name=message.name,
    )
    return as_dict(short, form)
