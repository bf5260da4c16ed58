"""Short stand-ins for the recorded part of a conversation: the same kinds of messages, next to no text."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rolltap.rendering.messages import SYSTEM_ROLES, as_dict
from rolltap.rendering.template_capabilities import MARK, TemplateCapabilities
from rolltap.types.chat import Message, ToolCall

DummyPrefix = Callable[[Sequence[Message], TemplateCapabilities], list[dict[str, Any]]]

_WORD = "x"
_USER = Message(role="user", content=_WORD)
_ANSWER = Message(role="assistant", content=_WORD)
_MARKED_ARGUMENTS = f'{{"a": "{MARK}"}}'


def last_assistant(message: Message, capabilities: TemplateCapabilities) -> dict[str, Any]:
    """A message like this assistant's, with the same calls, that ends in MARK."""
    if not (message.tool_calls and capabilities.shows_calls):
        return as_dict(Message(role="assistant", content=MARK), capabilities)
    # The mark is in each call: a template may show the first one alone.
    calls = tuple(
        ToolCall(name=call.name, id=call.id, arguments=_MARKED_ARGUMENTS)
        for call in _taken_calls(message, capabilities)
    )
    content = MARK if message.text else None  # some templates show it behind the calls
    return as_dict(Message(role="assistant", content=content, tool_calls=calls), capabilities)


def last_turn(old: Sequence[Message], capabilities: TemplateCapabilities) -> list[dict[str, Any]]:
    """The system messages, a user's, and the last assistant's. Enough for nearly all templates."""
    user = as_dict(_USER, capabilities)
    return [*_systems(old, capabilities), user, last_assistant(old[-1], capabilities)]


def with_a_call(old: Sequence[Message], capabilities: TemplateCapabilities) -> list[dict[str, Any]]:
    """`last_turn`, and one earlier call with its results where there was one: DeepSeek's templates remember it."""
    start, end = _first_call(old[:-1])
    if start == end:
        return last_turn(old, capabilities)
    early = [_short(message, capabilities) for message in (_USER, *old[start:end], _ANSWER, _USER)]
    return [*_systems(old, capabilities), *early, last_assistant(old[-1], capabilities)]


def all_roles(old: Sequence[Message], capabilities: TemplateCapabilities) -> list[dict[str, Any]]:
    """Every message, for templates that look at more. Takes time in proportion to the number of messages."""
    short = [_short(message, capabilities) for message in old[:-1]]
    return [*short, last_assistant(old[-1], capabilities)]


DUMMY_PREFIXES: tuple[DummyPrefix, ...] = (last_turn, with_a_call, all_roles)
"""From the cheapest to the one that is always right."""


def _systems(old: Sequence[Message], capabilities: TemplateCapabilities) -> list[dict[str, Any]]:
    """The leading system messages, whole: some templates repeat them in a later turn."""
    systems = []
    for message in old:
        if message.role not in SYSTEM_ROLES:
            break
        systems.append(as_dict(message, capabilities))
    return systems


def _first_call(messages: Sequence[Message]) -> tuple[int, int]:
    """Where the first calls with results stand, or else the first calls. An empty span where there are none."""
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


def _taken_calls(message: Message, capabilities: TemplateCapabilities) -> Sequence[ToolCall]:
    """The calls that the template takes. Recorded ids show them all, so a dummy needs no more than one."""
    return message.tool_calls[:1] if capabilities.parallel_calls == "refused" else message.tool_calls


def _short(message: Message, capabilities: TemplateCapabilities) -> dict[str, Any]:
    if message.role in SYSTEM_ROLES:
        return as_dict(message, capabilities)
    calls = tuple(ToolCall(name=call.name, id=call.id) for call in _taken_calls(message, capabilities))
    content = _WORD if message.text or not message.tool_calls else None
    short = msgspec.structs.replace(message, content=content, reasoning=None, tool_calls=calls)
    return as_dict(short, capabilities)
