"""Replies of Chat Completions, plain and streamed."""

from typing import Any

import orjson
from msgspec import Struct

from rolltap import (
    ChatDelta,
    ChatRequest,
    Choice,
    Completion,
    ErrorInfo,
    FinishReason,
    StreamEncoder,
    ToolCall,
    ToolCallDelta,
)
from rolltap_plugins.openai_dialects.replies import (
    DONE,
    finish_reason,
    logprobs_body,
    stream_error,
    usage_body,
)
from rolltap_plugins.wire import fragments


class ChatState(Struct, frozen=True):
    """What the reply must know of the request's form."""

    functions: bool = False
    """Whether the client speaks the deprecated `functions`."""


def chat_completion(request: ChatRequest, completion: Completion) -> dict[str, Any]:
    """The body of a plain reply."""
    return completion.extra | {
        "id": completion.id,
        "object": "chat.completion",
        "created": completion.created,
        "model": completion.model,
        "choices": [_choice(choice, _wants_functions(request)) for choice in completion.choices],
        "usage": usage_body(completion.usage),
    }


def _wants_functions(request: ChatRequest) -> bool:
    """Whether the client speaks the deprecated `functions`, and so looks for `function_call` in the reply."""
    return isinstance(request.state, ChatState) and request.state.functions


def _choice(choice: Choice, functions: bool) -> dict[str, Any]:
    message: dict[str, Any] = choice.extra | {
        "role": "assistant",
        "content": None if choice.tool_calls and not choice.text else choice.text,
        "refusal": None,
    }
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.tool_calls:
        message["tool_calls"] = [_call(call) for call in choice.tool_calls]
        if functions:
            first = choice.tool_calls[0]
            message["function_call"] = {"name": first.name, "arguments": first.arguments}
    logprobs = (
        None if choice.logprobs is None else {"content": logprobs_body(choice.logprobs), "refusal": None}
    )
    return {
        "index": choice.index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": _finish_reason(choice.finish_reason, functions),
    }


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _finish_reason(reason: FinishReason, functions: bool) -> str:
    return "function_call" if functions and reason == "tool_calls" else finish_reason(reason)


class ChatStream(StreamEncoder):
    """A streamed reply.

    A chunk with nothing but text, which most are, is put together from bytes made once. The finish chunks wait for
    `finish`, whose completion is the authority on how each choice ended.
    """

    def __init__(self, request: ChatRequest, completion: Completion) -> None:
        base = {
            "id": completion.id,
            "object": "chat.completion.chunk",
            "created": completion.created,
            "model": completion.model,
        }
        self._head = b"data: " + orjson.dumps(base)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if request.include_usage else b"]}\n\n"
        self._text_tail = b'},"logprobs":null,"finish_reason":null}' + self._tail
        self._text_heads: dict[int, bytes] = {}
        self._include_usage = request.include_usage
        self._functions = _wants_functions(request)

    def start(self) -> bytes:
        """The first choice's role."""
        return self._begin_to(0)

    def delta(self, delta: ChatDelta) -> bytes:
        """One chunk, or none where the delta has nothing that the client sees."""
        head = self._text_heads.get(delta.index)
        begin = b""
        if head is None:
            begin = self._begin_to(delta.index)
            head = self._text_heads[delta.index]
        others = delta.reasoning or delta.tool_calls or delta.logprobs or delta.extra or delta.reply_extra
        if delta.text and not others:
            return begin + head + orjson.dumps(delta.text) + self._text_tail
        return begin + self._mixed(delta)

    def finish(self, completion: Completion) -> bytes:
        """Each choice's finish chunk, the usage where it was asked for, and the end."""
        frames = []
        for choice in completion.choices:
            frames.append(self._begin_to(choice.index))
            reason = _finish_reason(choice.finish_reason, self._functions)
            frames.append(self._chunk(choice.index, {}, reason=reason))
        if self._include_usage:
            usage = orjson.dumps(usage_body(completion.usage))
            frames.append(self._head + b'],"usage":' + usage + b"}\n\n")
        return b"".join([*frames, DONE])

    def error(self, info: ErrorInfo) -> bytes:
        """A chunk with the error, and the end."""
        return stream_error(info)

    def _begin_to(self, index: int) -> bytes:
        """The roles of all choices up to this one that have not begun: the SDK's helper expects them in order."""
        frames = []
        for at in range(len(self._text_heads), index + 1):
            self._text_heads[at] = self._head + b'{"index":%d,"delta":{"content":' % at
            frames.append(self._chunk(at, {"role": "assistant", "content": ""}))
        return b"".join(frames)

    def _mixed(self, delta: ChatDelta) -> bytes:
        parts: dict[str, Any] = dict(delta.extra or ())
        if delta.reasoning:
            parts["reasoning_content"] = delta.reasoning
        if delta.text:
            parts["content"] = delta.text
        if delta.tool_calls:
            calls = fragments(delta)
            parts["tool_calls"] = [_fragment(call) for call in calls]
            if self._functions:
                parts |= _function_call([call for call in calls if call.index == 0])
        if not parts and not delta.logprobs and not delta.reply_extra:
            return b""
        logprobs = {"content": logprobs_body(delta.logprobs)} if delta.logprobs else None
        chunk = self._chunk(delta.index, parts, logprobs=logprobs)
        return self._with_fields(chunk, delta.reply_extra) if delta.reply_extra else chunk

    def _with_fields(self, chunk: bytes, fields: dict[str, Any]) -> bytes:
        """A chunk with further fields of the whole reply in front of its own."""
        return chunk.replace(b"data: {", b"data: " + orjson.dumps(fields)[:-1] + b",", 1)

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._head + orjson.dumps(choice) + self._tail


def _fragment(call: ToolCallDelta) -> dict[str, Any]:
    function: dict[str, Any] = {"arguments": call.arguments}
    body: dict[str, Any] = {"index": call.index, "function": function}
    if call.name is not None:
        function["name"] = call.name
        body |= {"id": call.id, "type": "function"}
    return body


def _function_call(calls: list[ToolCallDelta]) -> dict[str, Any]:
    """The first call's fragments, in the deprecated form."""
    if not calls:
        return {}
    body: dict[str, Any] = {"arguments": "".join(call.arguments for call in calls)}
    if calls[0].name is not None:
        body["name"] = calls[0].name
    return {"function_call": body}
