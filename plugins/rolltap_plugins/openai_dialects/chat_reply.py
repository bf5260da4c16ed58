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
from rolltap_plugins.openai_dialects.custom import CustomCalls, as_input
from rolltap_plugins.openai_dialects.replies import (
    DONE,
    finish_reason,
    logprobs_body,
    prompt_logprobs_body,
    stream_error,
    usage_body,
)
from rolltap_plugins.wire import fragments


class ChatState(Struct, frozen=True):
    """What the reply must know of the request's form."""

    functions: bool = False
    """Whether the client speaks the deprecated `functions`, and so looks for `function_call` in the reply."""
    freeform: frozenset[str] = frozenset()
    """The names of the tools whose calls are shown as free text."""


def chat_completion(request: ChatRequest, completion: Completion) -> dict[str, Any]:
    """The body of a plain reply."""
    first = completion.choices[0] if completion.choices else Choice()
    prompt: dict[str, Any] = {}
    if request.return_token_ids:
        prompt["prompt_token_ids"] = first.prompt_token_ids
    if first.prompt_logprobs is not None:
        prompt["prompt_logprobs"] = prompt_logprobs_body(first.prompt_logprobs)
    return completion.extra | {
        **prompt,
        "id": completion.id,
        "object": "chat.completion",
        "created": completion.created,
        "model": completion.model,
        "choices": [_choice(choice, _state(request)) for choice in completion.choices],
        "usage": usage_body(completion.usage),
    }


def _state(request: ChatRequest) -> ChatState:
    """The state that the request was decoded with; an empty one for a request that was not decoded here."""
    return request.state if isinstance(request.state, ChatState) else ChatState()


def _choice(choice: Choice, state: ChatState) -> dict[str, Any]:
    message: dict[str, Any] = choice.extra | {
        "role": "assistant",
        "content": None if choice.tool_calls and not choice.text else choice.text,
        "refusal": None,
    }
    if choice.reasoning:
        message |= _thought(choice.reasoning)
    if choice.tool_calls:
        message["tool_calls"] = [_call(call, state) for call in choice.tool_calls]
        if state.functions:
            first = choice.tool_calls[0]
            message["function_call"] = {"name": first.name, "arguments": first.arguments}
    logprobs = (
        None if choice.logprobs is None else {"content": logprobs_body(choice.logprobs), "refusal": None}
    )
    return {
        **({} if choice.token_ids is None else {"token_ids": choice.token_ids}),
        "index": choice.index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": _finish_reason(choice.finish_reason, state.functions),
    }


def _thought(text: str) -> dict[str, str]:
    """Thinking under both of the names that clients look for."""
    return {"reasoning": text, "reasoning_content": text}


def _call(call: ToolCall, state: ChatState) -> dict[str, Any]:
    if call.name in state.freeform:
        custom = {"name": call.name, "input": as_input(call.arguments)}
        return {**call.extra, "id": call.id, "type": "custom", "custom": custom}
    function = {**call.extra.get("function", {}), "name": call.name, "arguments": call.arguments}
    return {**call.extra, "id": call.id, "type": "function", "function": function}


def _finish_reason(reason: FinishReason, functions: bool) -> str:
    return "function_call" if functions and reason == "tool_calls" else finish_reason(reason)


_TEXT_END = b'},"logprobs":null,"finish_reason":null}'


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
        self._text_tail = _TEXT_END + self._tail
        self._text_heads: dict[int, bytes] = {}
        self._include_usage = request.include_usage
        self._continuous_usage = request.continuous_usage
        self._functions = _state(request).functions
        self._custom = CustomCalls(_state(request).freeform)

    def start(self) -> bytes:
        """The first choice's role."""
        return self._begin_to(0)

    def delta(self, delta: ChatDelta) -> bytes:
        """One chunk, or none where the delta has nothing that the client sees."""
        if self._continuous_usage and delta.usage is not None:
            self._tail = b'],"usage":' + orjson.dumps(usage_body(delta.usage)) + b"}\n\n"
            self._text_tail = _TEXT_END + self._tail
        head = self._text_heads.get(delta.index)
        begin = b""
        if head is None:
            begin = self._begin_to(delta.index)
            head = self._text_heads[delta.index]
        others: Any = delta.reasoning or delta.tool_calls or delta.logprobs or delta.token_ids
        others = others or delta.extra or delta.reply_extra or delta.prompt_token_ids
        if delta.text and not others:
            return begin + head + orjson.dumps(delta.text) + self._text_tail
        return begin + self._mixed(delta)

    def finish(self, completion: Completion) -> bytes:
        """Each choice's finish chunk, the usage where it was asked for, and the end."""
        frames = []
        for choice in completion.choices:
            frames.append(self._begin_to(choice.index))
            rest = [
                _custom_piece(number, piece) for number, piece in self._custom.rest(choice.index) if piece
            ]
            if rest:
                frames.append(self._chunk(choice.index, {"tool_calls": rest}))
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
            parts |= _thought(delta.reasoning)
        if delta.text:
            parts["content"] = delta.text
        if delta.tool_calls:
            calls = fragments(delta)
            parts["tool_calls"] = [self._fragment(delta.index, call) for call in calls]
            if self._functions:
                parts |= _function_call([call for call in calls if call.index == 0])
        fields = dict(delta.reply_extra or ())
        if delta.prompt_token_ids is not None:
            fields["prompt_token_ids"] = delta.prompt_token_ids
        if not parts and not delta.logprobs and not delta.token_ids and not fields:
            return b""
        logprobs = {"content": logprobs_body(delta.logprobs)} if delta.logprobs else None
        chunk = self._chunk(delta.index, parts, logprobs=logprobs, token_ids=delta.token_ids)
        return self._with_fields(chunk, fields) if fields else chunk

    def _fragment(self, choice: int, call: ToolCallDelta) -> dict[str, Any]:
        piece = self._custom.piece(choice, call)
        kind = "function" if piece is None else "custom"
        told = {"arguments": call.arguments} if piece is None else {"input": piece}
        extra = call.extra or {}
        body: dict[str, Any] = {**extra, "index": call.index, kind: {**extra.get("function", {}), **told}}
        if call.name is not None:
            body[kind]["name"] = call.name
            body |= {"id": call.id, "type": kind}
        return body

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
        token_ids: list[int] | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        if token_ids is not None:
            choice["token_ids"] = token_ids
        return self._head + orjson.dumps(choice) + self._tail


def _custom_piece(number: int, text: str) -> dict[str, Any]:
    return {"index": number, "custom": {"input": text}}


def _function_call(calls: list[ToolCallDelta]) -> dict[str, Any]:
    """The first call's fragments, in the deprecated form."""
    if not calls:
        return {}
    body: dict[str, Any] = {"arguments": "".join(call.arguments for call in calls)}
    if calls[0].name is not None:
        body["name"] = calls[0].name
    return {"function_call": body}
