"""A reply collected from its deltas: the plain answer, and the message that the record keeps."""

from typing import Any, NamedTuple

from rolltap.types.chat import Message, ToolCall
from rolltap.types.generation import ChatDelta, Choice, PromptToken, TokenLogprob, ToolCallDelta, Usage


class Answer(NamedTuple):
    """What a backend has answered, so far or in all."""

    choices: list[Choice]
    usage: Usage | None
    extra: dict[str, object]
    """Further fields of the upstream's reply."""


class _ChoiceParts:
    """The pieces of one choice, joined once at the end."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, ToolCallDelta] = {}
        self.arguments: dict[int, list[str]] = {}
        self.logprobs: list[TokenLogprob] | None = None
        self.token_ids: list[int] | None = None
        self.prompt_token_ids: list[int] | None = None
        self.prompt_logprobs: list[PromptToken] | None = None
        self.extra: dict[str, Any] = {}
        self.end: ChatDelta | None = None

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
        self._add_details(delta)
        if delta.finish_reason is not None:
            self.end = delta

    def _add_details(self, delta: ChatDelta) -> None:
        """What few deltas have."""
        if delta.token_ids is not None:
            if self.token_ids is None:
                self.token_ids = []
            self.token_ids.extend(delta.token_ids)
        self.prompt_token_ids = delta.prompt_token_ids or self.prompt_token_ids
        self.prompt_logprobs = delta.prompt_logprobs or self.prompt_logprobs
        if delta.extra:
            for name, value in delta.extra.items():
                so_far = self.extra.get(name)
                both = isinstance(so_far, list) and isinstance(value, list)
                # Details of the thinking come in pieces, each a list.
                self.extra[name] = [*self.extra[name], *value] if both else value

    def _add_call(self, fragment: ToolCallDelta) -> None:
        call = self.calls.setdefault(fragment.index, ToolCallDelta(index=fragment.index))
        call.id = call.id or fragment.id
        call.name = call.name or fragment.name
        call.extra = call.extra or fragment.extra
        self.arguments.setdefault(fragment.index, []).append(fragment.arguments)

    def choice(self) -> Choice:
        calls = [
            ToolCall(
                name=call.name or "",
                arguments="".join(self.arguments[number]) or ("{}" if self.end is not None else ""),
                id=call.id or "",
                extra=call.extra or {},
            )
            for number, call in sorted(self.calls.items())
        ]
        choice = Choice(
            index=self.index,
            text="".join(self.text),
            reasoning="".join(self.reasoning),
            tool_calls=calls,
            logprobs=self.logprobs,
            token_ids=self.token_ids,
            prompt_token_ids=self.prompt_token_ids,
            prompt_logprobs=self.prompt_logprobs,
            extra=self.extra,
        )
        if self.end is not None and self.end.finish_reason is not None:
            choice.finish_reason, choice.stop_sequence = self.end.finish_reason, self.end.stop_sequence
        return choice


class Collector:
    """Takes the deltas of one request; says at any time what they add up to."""

    def __init__(self) -> None:
        self._parts: dict[int, _ChoiceParts] = {}
        self._usage: Usage | None = None
        self._extra: dict[str, object] = {}

    @property
    def begun(self) -> set[int]:
        """The indices of the choices that something was said of."""
        return set(self._parts)

    @property
    def usage(self) -> Usage | None:
        """The last report of usage."""
        return self._usage

    def add(self, delta: ChatDelta) -> None:
        """Take the next delta."""
        parts = self._parts.get(delta.index)
        if parts is None:
            parts = self._parts[delta.index] = _ChoiceParts(delta.index)
        parts.add(delta)
        if delta.usage is not None:
            self._usage = delta.usage
        if delta.reply_extra is not None:
            self._extra |= delta.reply_extra

    def collect(self) -> Answer:
        """Everything that came so far."""
        choices = [self._parts[index].choice() for index in sorted(self._parts)]
        return Answer(choices, self._usage, self._extra)


def as_message(choice: Choice) -> Message:
    """A choice as the client will send it back."""
    return Message(
        role="assistant",
        content=choice.text,
        reasoning=choice.reasoning or None,
        tool_calls=tuple(choice.tool_calls),
        extra=choice.extra,
    )


def as_deltas(choices: list[Choice], *, ended: bool = True) -> list[ChatDelta]:
    """A collected reply as deltas again: for a client that joins a call, or asks again for one that has ended."""
    deltas = []
    for choice in choices:
        calls: list[ToolCallDelta | ToolCall] = [
            ToolCallDelta(
                index=number, id=call.id, name=call.name, arguments=call.arguments, extra=call.extra or None
            )
            for number, call in enumerate(choice.tool_calls)
        ]
        if choice.reasoning:
            deltas.append(ChatDelta(index=choice.index, reasoning=choice.reasoning))
        if choice.text or choice.logprobs or choice.extra or choice.token_ids:
            deltas.append(
                ChatDelta(
                    index=choice.index,
                    text=choice.text,
                    logprobs=choice.logprobs,
                    token_ids=choice.token_ids,
                    prompt_token_ids=choice.prompt_token_ids,
                    extra=dict(choice.extra) or None,
                )
            )
        if calls:
            deltas.append(ChatDelta(index=choice.index, tool_calls=calls))
        if ended:
            deltas.append(
                ChatDelta(
                    index=choice.index,
                    finish_reason=choice.finish_reason,
                    stop_sequence=choice.stop_sequence,
                )
            )
    return deltas
