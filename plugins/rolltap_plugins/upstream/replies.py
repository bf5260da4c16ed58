"""Replies of Chat Completions as deltas: whole ones and chunks, as servers of many makes write them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from rolltap import (
    ChatDelta,
    ChatRequest,
    FinishReason,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    UpstreamError,
    Usage,
)
from rolltap_plugins.upstream.errors import told_error, unreadable

log = logging.getLogger(__name__)

_FINISH_REASONS: dict[str, FinishReason] = {
    "abort": "abort",
    "content_filter": "content_filter",
    "end_turn": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "refusal": "content_filter",
    "safety": "content_filter",
    "stop": "stop",
    "stop_sequence": "stop",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
}
"""The words of OpenAI, and those that others let through from what is behind them."""

_NOTHING: dict[str, Any] = {}

_READ_OF_REPLY = frozenset({"id", "object", "created", "model", "choices", "usage", "error", "obfuscation"})
_READ_OF_MESSAGE = frozenset(
    {"role", "content", "reasoning", "reasoning_content", "refusal", "tool_calls", "function_call"}
)
_READ_OF_CALL = frozenset({"id", "index", "type", "function"})
"""The fields that are read here, or belong to the upstream's connection alone; all others go on to the client."""


class ReplyReader:
    """Reads one reply: `whole` for a plain one, `chunk` for each chunk of a streamed one and `end` after the last.

    All raise `UpstreamError` for what can't be read, and for an error that the reply itself tells of; `told` may
    change the latter.
    """

    def __init__(
        self,
        request: ChatRequest,
        on_number_ids: Callable[[], None] | None = None,
        *,
        told: Callable[[UpstreamError], UpstreamError] = lambda error: error,
    ) -> None:
        """`on_number_ids` is told once where the upstream's own ids of calls are integers."""
        self._told = told
        self._on_number_ids = on_number_ids
        self._wants_logprobs = request.sampling.top_logprobs is not None
        self._begun = False
        self._unfinished: set[int] = set()
        self._calls: dict[int, _CallIndex] = {}
        self._refused: set[int] = set()
        self._reply_extra: dict[str, Any] | None = None

    def whole(self, reply: Mapping[str, Any]) -> list[ChatDelta]:
        """A plain reply's deltas. One without any choice, such as a filter's, is an empty turn."""
        deltas = self.chunk(reply)
        choices = reply.get("choices")
        if choices is None:
            raise UpstreamError("the upstream answered with JSON that has no choices")
        if not choices:
            deltas.append(ChatDelta(finish_reason="stop"))
        return deltas + self.end()

    def chunk(self, chunk: Mapping[str, Any]) -> list[ChatDelta]:
        """The deltas of one chunk. The first chunk has at least one: the upstream has accepted the request."""
        try:
            return self._chunk(chunk)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise unreadable("", error) from error

    def end(self) -> list[ChatDelta]:
        """The ends of the choices that a reply, though it is whole, left without a finish reason."""
        return [
            ChatDelta(index=index, finish_reason="tool_calls" if index in self._calls else "stop")
            for index in sorted(self._unfinished)
        ]

    def _chunk(self, chunk: Mapping[str, Any]) -> list[ChatDelta]:
        if error := chunk.get("error"):
            raise self._told(told_error(error))
        deltas = []
        for choice in chunk.get("choices") or ():
            delta = self._choice(choice)
            if delta is not None:
                deltas.append(delta)
        if usage := chunk.get("usage"):
            deltas.append(ChatDelta(usage=_usage(usage)))
        extra = _others(chunk, _READ_OF_REPLY)
        changed = extra is not None and extra != self._reply_extra
        if not deltas and (changed or not self._begun):
            deltas.append(ChatDelta())
        if changed:
            deltas[0].reply_extra = self._reply_extra = extra
        self._begun = True
        return deltas

    def _choice(self, choice: Mapping[str, Any]) -> ChatDelta | None:
        """What a choice says in this chunk; None where that is nothing."""
        index = _whole_number(choice.get("index") or 0)
        delta = ChatDelta(index=index)
        step = choice.get("delta")
        if step is None:
            self._whole_message(delta, choice.get("message") or _NOTHING)
        else:
            self._step(delta, step)
        if self._wants_logprobs and choice.get("logprobs"):
            delta.logprobs = [_logprob(token) for token in choice["logprobs"].get("content") or ()]
        if choice.get("finish_reason"):
            self._finish(delta, choice)
        else:
            self._unfinished.add(index)
            if not (delta.text or delta.reasoning or delta.tool_calls or delta.logprobs or delta.extra):
                return None
        return delta

    def _step(self, delta: ChatDelta, step: Mapping[str, Any]) -> None:
        self._said(delta, step)
        if calls := step.get("tool_calls"):
            known = self._calls.setdefault(delta.index, _CallIndex())
            self._note_ids(calls)
            delta.tool_calls = [_fragment(call, known.of(call)) for call in calls]
        elif call := step.get("function_call"):
            self._calls.setdefault(delta.index, _CallIndex())
            delta.tool_calls = [_fragment({"function": call}, 0)]

    def _whole_message(self, delta: ChatDelta, message: Mapping[str, Any]) -> None:
        self._said(delta, message)
        if calls := message.get("tool_calls"):
            self._note_ids(calls)
            delta.tool_calls = [_call(call) for call in calls]
        elif call := message.get("function_call"):
            delta.tool_calls = [_call({"function": call})]
        if delta.tool_calls:
            self._calls[delta.index] = _CallIndex()

    def _note_ids(self, calls: Sequence[Mapping[str, Any]]) -> None:
        if self._on_number_ids is not None and any(isinstance(call.get("id"), int) for call in calls):
            self._on_number_ids()
            self._on_number_ids = None

    def _said(self, delta: ChatDelta, step: Mapping[str, Any]) -> None:
        """The text and the thinking. Some servers send the thinking under both of its names: one counts."""
        content = step.get("content")
        if content is not None:
            if isinstance(content, str):
                delta.text = content
            else:
                delta.text, delta.reasoning = _parts(content)
        if content is None or len(step) > 1:
            delta.extra = _others(step, _READ_OF_MESSAGE)
            if thought := step.get("reasoning_content") or step.get("reasoning"):
                delta.reasoning += _thought(thought)
            if refusal := step.get("refusal"):
                delta.text += _text(refusal)
                self._refused.add(delta.index)

    def _finish(self, delta: ChatDelta, choice: Mapping[str, Any]) -> None:
        self._unfinished.discard(delta.index)
        reason = _finish_reason(choice["finish_reason"])
        if reason == "stop" and delta.index in self._calls:
            reason = "tool_calls"
        elif reason == "stop" and delta.index in self._refused:
            reason = "content_filter"
        delta.finish_reason = reason
        stop = choice.get("stop_reason") or choice.get("matched_stop")  # vLLM's name, SGLang's
        if isinstance(stop, str):
            delta.stop_sequence = stop


def _others(fields: Mapping[str, Any], read: frozenset[str]) -> dict[str, Any] | None:
    """The fields that are not read here and say something; None where there are none."""
    return {name: fields[name] for name in fields.keys() - read if fields[name] is not None} or None


class _CallIndex:
    """Numbers fragments that come without `index`: one with a name, or with another id, begins a call."""

    def __init__(self) -> None:
        self._last = -1
        self._id: str | None = None

    def of(self, fragment: Mapping[str, Any]) -> int:
        index = fragment.get("index")
        call_id = fragment.get("id")
        if index is None:
            named = bool((fragment.get("function") or _NOTHING).get("name"))
            another = named if call_id is None else call_id != self._id
            index = self._last + 1 if another or self._last < 0 else self._last
        self._last, self._id = _whole_number(index), call_id or self._id
        return self._last


def _fragment(call: Mapping[str, Any], index: int) -> ToolCallDelta:
    function = call.get("function") or _NOTHING
    return ToolCallDelta(
        index=index,
        id=_id(call),
        name=_text(function.get("name")) or None,
        arguments=_arguments(function.get("arguments")),
        extra=_others(call, _READ_OF_CALL),
    )


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function") or _NOTHING
    return ToolCall(
        name=_text(function.get("name")),
        arguments=_arguments(function.get("arguments")),
        id=_id(call) or "",
        extra=_others(call, _READ_OF_CALL) or {},
    )


def _id(call: Mapping[str, Any]) -> str | None:
    """A call's id as text; some servers number them."""
    value = call.get("id")
    return str(value) if isinstance(value, int) else _text(value) or None


def _text(value: Any) -> str:
    """A text that may be null or missing. Raises `TypeError` for anything else."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"a text was expected, and {value!r:.50} came")
    return value or ""


def _whole_number(value: Any) -> int:
    """A count or an index. Raises `TypeError` for anything else."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise TypeError(f"a count was expected, and {value!r:.50} came")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"a number was expected, and {value!r:.50} came")
    return float(value)


def _count(value: Any) -> int | None:
    return None if value is None else _whole_number(value)


def _arguments(value: Any) -> str:
    """Arguments as text; some servers send them parsed."""
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value).decode()


def _parts(content: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Text and thinking of content in parts, as Mistral's reasoning models send it."""
    text = "".join(_text(part["text"]) for part in content if part.get("type") == "text")
    thoughts = [part["thinking"] for part in content if part.get("type") == "thinking"]
    return text, "".join(thought if isinstance(thought, str) else _parts(thought)[0] for thought in thoughts)


def _thought(value: Any) -> str:
    if isinstance(value, str):
        return value
    return _text(value.get("content"))


def _finish_reason(word: str) -> FinishReason:
    reason = _FINISH_REASONS.get(_text(word))
    if reason is None:
        if word == "error":
            raise UpstreamError("the upstream ended a choice with an error that it does not name", status=500)
        log.warning("the upstream's finish_reason %r is not known; taken as stop", word)
        return "stop"
    return reason


def _usage(usage: Mapping[str, Any]) -> Usage:
    prompt = usage.get("prompt_tokens_details") or _NOTHING
    completion = usage.get("completion_tokens_details") or _NOTHING
    cached = prompt.get("cached_tokens")
    return Usage(
        prompt_tokens=_whole_number(usage.get("prompt_tokens") or 0),
        completion_tokens=_whole_number(usage.get("completion_tokens") or 0),
        cached_tokens=_count(
            usage.get("prompt_cache_hit_tokens") if cached is None else cached
        ),  # DeepSeek's name
        reasoning_tokens=_count(completion.get("reasoning_tokens")),
    )


def _logprob(token: Mapping[str, Any]) -> TokenLogprob:
    spelled = token.get("bytes")
    return TokenLogprob(
        token=_text(token["token"]),
        logprob=_number(token["logprob"]),
        bytes=None if spelled is None else [_whole_number(byte) for byte in spelled],
        top=[_logprob(other) for other in token.get("top_logprobs") or ()],
    )
