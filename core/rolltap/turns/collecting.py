"""A reply collected from its deltas: the plain answer, and the message that the record matches later."""

from collections.abc import Iterable

from rolltap.types.chat import Message, ToolCall
from rolltap.types.generation import ChatDelta, Choice, Completion, TokenLogprob, ToolCallDelta


class _ChoiceParts:
    """The pieces of one choice, joined once at the end."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, ToolCallDelta] = {}
        self.arguments: dict[int, list[str]] = {}
        self.logprobs: list[TokenLogprob] | None = None

    def add(self, delta: ChatDelta) -> None:
        if delta.text:
            self.text.append(delta.text)
        if delta.reasoning:
            self.reasoning.append(delta.reasoning)
        for call in delta.tool_calls:
            if isinstance(call, ToolCallDelta):
                self._add_call(call)
        if delta.logprobs is not None:
            if self.logprobs is None:
                self.logprobs = []
            self.logprobs.extend(delta.logprobs)

    def _add_call(self, fragment: ToolCallDelta) -> None:
        call = self.calls.setdefault(fragment.index, ToolCallDelta(index=fragment.index))
        call.id = call.id or fragment.id
        call.name = call.name or fragment.name
        self.arguments.setdefault(fragment.index, []).append(fragment.arguments)


class Collector:
    """Takes the deltas of one request and fills in its `Completion`."""

    def __init__(self, completion: Completion) -> None:
        self._completion = completion
        self._parts: dict[int, _ChoiceParts] = {}
        self._choices: dict[int, Choice] = {}

    @property
    def begun(self) -> set[int]:
        """The indices of the choices that something was said of."""
        return set(self._parts)

    def add(self, delta: ChatDelta) -> None:
        """Take the next delta."""
        parts = self._parts.get(delta.index)
        if parts is None:
            parts = self._parts[delta.index] = _ChoiceParts()
            self._choices[delta.index] = Choice(index=delta.index)
        parts.add(delta)
        choice = self._choices[delta.index]
        if delta.finish_reason is not None:
            choice.finish_reason, choice.stop_sequence = delta.finish_reason, delta.stop_sequence
        if delta.usage is not None:
            self._completion.usage = delta.usage
        if delta.extra is not None:
            choice.extra |= delta.extra
        if delta.reply_extra is not None:
            self._completion.extra |= delta.reply_extra

    def collect(self) -> Completion:
        """The completion with everything that came so far."""
        for index, parts in self._parts.items():
            choice = self._choices[index]
            choice.text = "".join(parts.text)
            choice.reasoning = "".join(parts.reasoning)
            choice.tool_calls = [
                ToolCall(
                    name=call.name or "", arguments="".join(parts.arguments[number]) or "{}", id=call.id or ""
                )
                for number, call in sorted(parts.calls.items())
            ]
            choice.logprobs = parts.logprobs
        self._completion.choices = [self._choices[index] for index in sorted(self._choices)]
        return self._completion


def as_message(choice: Choice) -> Message:
    """A choice as the client will send it back."""
    return Message(
        role="assistant",
        content=choice.text,
        reasoning=choice.reasoning or None,
        tool_calls=choice.tool_calls,
    )


def transcript(messages: Iterable[Message]) -> str:
    """Messages as plain text: what a text-only node shows of its prompt."""
    lines = []
    for message in messages:
        calls = "".join(f"\n[call {call.name} {call.arguments}]" for call in message.tool_calls)
        lines.append(f"{message.role}: {message.text}{calls}\n")
    return "".join(lines)
