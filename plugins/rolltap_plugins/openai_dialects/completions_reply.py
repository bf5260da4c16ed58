"""Replies of Completions, plain and streamed."""

from collections.abc import Sequence
from typing import Any

import orjson
from msgspec import Struct

from rolltap import (
    ChatDelta,
    ChatRequest,
    Choice,
    Completion,
    ErrorInfo,
    PromptToken,
    StreamEncoder,
    TokenLogprob,
)
from rolltap_plugins.openai_dialects.replies import (
    DONE,
    finish_reason,
    prompt_logprobs_body,
    stream_error,
    usage_body,
)


class CompletionsState(Struct, frozen=True):
    """What the reply must know of the request's form."""

    scored_echo: bool = False
    """Whether the prompt's tokens stand in front of the choice's, with their logprobs."""
    prompt_logprobs: bool = False
    """Whether the prompt's logprobs are told in a field of their own, as vLLM tells them."""


def text_completion(request: ChatRequest, completion: Completion) -> dict[str, Any]:
    """The body of a plain reply."""
    return completion.extra | {
        "id": completion.id,
        "object": "text_completion",
        "created": completion.created,
        "model": completion.model,
        "choices": [_choice(request, choice) for choice in completion.choices],
        "usage": usage_body(completion.usage),
    }


def _state(request: ChatRequest) -> CompletionsState:
    """The state that the request was decoded with; an empty one for a request that was not decoded here."""
    return request.state if isinstance(request.state, CompletionsState) else CompletionsState()


def _choice(request: ChatRequest, choice: Choice) -> dict[str, Any]:
    state = _state(request)
    text, tokens = echoed(request, choice.index), choice.logprobs
    logprobs = None if tokens is None else _logprobs(tokens, len(text))
    if state.scored_echo:
        scored = choice.prompt_logprobs or []
        text = text or "".join(token.token for token in scored)
        logprobs = _logprobs([*scored, *(tokens or ())], 0)
    body: dict[str, Any] = {
        "index": choice.index,
        "text": text + choice.text,
        "logprobs": logprobs,
        "finish_reason": reason_of(choice),
    }
    if request.return_token_ids:
        body |= {"token_ids": choice.token_ids or [], "prompt_token_ids": choice.prompt_token_ids}
    if state.prompt_logprobs:
        body["prompt_logprobs"] = prompt_logprobs_body(choice.prompt_logprobs)
    return body


def echoed(request: ChatRequest, index: int) -> str:
    """The prompt's text that a choice begins with; "" where it begins with none, or its ids alone are known."""
    prompts = (request.prompt, *request.more_prompts)
    at = index // request.sampling.n if request.more_prompts else 0
    prompt = prompts[at] if at < len(prompts) else None
    return prompt if request.echo and isinstance(prompt, str) else ""


def reason_of(choice: Choice) -> str:
    """A raw completion knows no tool calls: text that looks like one is text."""
    return "stop" if choice.finish_reason == "tool_calls" else finish_reason(choice.finish_reason)


def _logprobs(tokens: Sequence[TokenLogprob | PromptToken], start: int) -> dict[str, Any]:
    """The four parallel lists; `start` is where the first token begins in the choice's text, in characters.

    The first token of a prompt has no logprob, and so none of what is told beside it.
    """
    offsets = []
    for token in tokens:
        offsets.append(start)
        start += len(token.token)
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [
            None if token.logprob is None else {other.token: other.logprob for other in token.top}
            for token in tokens
        ],
        "text_offset": offsets,
    }


class CompletionsStream(StreamEncoder):
    """A streamed reply. Finish chunks wait for `finish`, as those of Chat Completions do."""

    def __init__(self, request: ChatRequest, completion: Completion) -> None:
        base = {
            "id": completion.id,
            "object": "text_completion",
            "created": completion.created,
            "model": completion.model,
        }
        self._request = request
        self._head = b"data: " + orjson.dumps(base)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if request.include_usage else b"]}\n\n"
        self._echoed: set[int] = set()
        self._offsets: dict[int, int] = {}

    def start(self) -> bytes:
        """The echoed prompt, where the client wants it."""
        return self._echo_once(0)

    def delta(self, delta: ChatDelta) -> bytes:
        """One chunk, or none where the delta has no text, no logprobs and no ids."""
        if self._request.continuous_usage and delta.usage is not None:
            self._tail = b'],"usage":' + orjson.dumps(usage_body(delta.usage)) + b"}\n\n"
        echo = self._echo_once(delta.index)
        ids: dict[str, Any] = {"token_ids": delta.token_ids} if delta.token_ids else {}
        if delta.prompt_token_ids is not None:
            ids["prompt_token_ids"] = delta.prompt_token_ids
        if not delta.text and not delta.logprobs and not ids:
            return echo
        logprobs = None
        if delta.logprobs:
            start = self._offsets.get(delta.index, len(echoed(self._request, delta.index)))
            logprobs = _logprobs(delta.logprobs, start)
            self._offsets[delta.index] = start + sum(len(token.token) for token in delta.logprobs)
        return echo + self._chunk(delta.index, delta.text, logprobs=logprobs, ids=ids)

    def finish(self, completion: Completion) -> bytes:
        """Each choice's finish chunk, the usage where it was asked for, and the end."""
        frames = []
        for choice in completion.choices:
            frames.append(self._echo_once(choice.index))
            frames.append(self._chunk(choice.index, "", reason=reason_of(choice)))
        if self._request.include_usage:
            usage = orjson.dumps(usage_body(completion.usage))
            frames.append(self._head + b'],"usage":' + usage + b"}\n\n")
        return b"".join([*frames, DONE])

    def error(self, info: ErrorInfo) -> bytes:
        """A chunk with the error, and the end."""
        return stream_error(info)

    def _echo_once(self, index: int) -> bytes:
        if index in self._echoed:
            return b""
        self._echoed.add(index)
        echo = echoed(self._request, index)
        return self._chunk(index, echo) if echo else b""

    def _chunk(
        self,
        index: int,
        text: str,
        *,
        reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
        ids: dict[str, Any] | None = None,
    ) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason, **(ids or {})}
        return self._head + orjson.dumps(choice) + self._tail
