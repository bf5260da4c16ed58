"""Replies of the Responses API: the response object and its output items."""

from typing import Any

from rolltap import ChatRequest, Choice, Completion, FinishReason, ToolCall, Usage
from rolltap_plugins.openai_dialects.replies import logprobs_body
from rolltap_plugins.openai_dialects.responses.tools import echoed_choice, echoed_tools, state_of

_INCOMPLETE: dict[FinishReason, str | None] = {
    "length": "max_output_tokens",
    "content_filter": "content_filter",
    "abort": None,  # the engine gave up, for a reason that the API has no word for
}
"""Why a reply with this finish reason is incomplete; any other is complete."""


def response(request: ChatRequest, completion: Completion) -> dict[str, Any]:
    """The body of a plain reply."""
    return finished(envelope(request, completion), completion, output(request, completion))


def envelope(request: ChatRequest, completion: Completion) -> dict[str, Any]:
    """A response that has only begun."""
    sampling, state = request.sampling, state_of(request)
    parallel = request.parallel_tool_calls
    return {
        "id": completion.id,
        "object": "response",
        "created_at": completion.created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": sampling.max_tokens,
        "metadata": request.client_fields.get("metadata") or {},
        "model": completion.model,
        "output": [],
        "parallel_tool_calls": True if parallel is None else parallel,
        "previous_response_id": request.previous_id,
        "reasoning": state.reasoning,
        "store": request.keep,
        "temperature": sampling.temperature,
        "text": state.text or {"format": {"type": "text"}},
        "tool_choice": echoed_choice(request),
        "tools": echoed_tools(request),
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def finished(begun: dict[str, Any], completion: Completion, items: list[dict[str, Any]]) -> dict[str, Any]:
    """The same response when it is over."""
    reason = finish_reason(completion)
    complete = reason not in _INCOMPLETE
    return begun | {
        "model": completion.model,
        "status": "completed" if complete else "incomplete",
        "incomplete_details": None if complete else {"reason": _INCOMPLETE[reason]},
        "output": items,
        "usage": _usage(completion.usage),
    }


def finish_reason(completion: Completion) -> FinishReason:
    """How the first choice ended; a response has no other."""
    return completion.choices[0].finish_reason if completion.choices else "stop"


def item_status(completion: Completion) -> str:
    """The status of the items of a finished reply."""
    return "incomplete" if finish_reason(completion) in _INCOMPLETE else "completed"


def output(request: ChatRequest, completion: Completion) -> list[dict[str, Any]]:
    """The items of a whole reply: the thinking, what was said, the calls."""
    choice = completion.choices[0] if completion.choices else Choice()
    status = item_status(completion)
    items: list[dict[str, Any]] = []
    if choice.reasoning:
        items.append(reasoning_item(item_id(completion, "rs", len(items)), status, choice.reasoning))
    if choice.text or not (items or choice.tool_calls):
        logprobs = logprobs_body(choice.logprobs or [])
        part = text_part(choice.text, logprobs)
        items.append(message_item(item_id(completion, "msg", len(items)), status, [part]))
    for call in choice.tool_calls:
        items.append(call_item(item_id(completion, "fc", len(items)), status, call, request))
    return items


def item_id(completion: Completion, kind: str, index: int) -> str:
    """An item's id: the same however often the reply is encoded."""
    return f"{kind}_{completion.id.partition('_')[2]}_{index}"


def text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    """The text of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def reasoning_part(text: str) -> dict[str, Any]:
    """The text of thinking."""
    return {"type": "reasoning_text", "text": text}


def message_item(name: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    """What was said."""
    return {"id": name, "type": "message", "status": status, "role": "assistant", "content": content}


def reasoning_item(name: str, status: str, text: str | None) -> dict[str, Any]:
    """What was thought; None while nothing has been."""
    content = [] if text is None else [reasoning_part(text)]
    return {"id": name, "type": "reasoning", "status": status, "summary": [], "content": content}


def call_item(name: str, status: str, call: ToolCall, request: ChatRequest) -> dict[str, Any]:
    """A call, in the namespace that its function came in."""
    item = {
        "id": name,
        "type": "function_call",
        "status": status,
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }
    if namespace := state_of(request).namespaces.get(call.name):
        item["namespace"] = namespace
    return item


def _usage(usage: Usage) -> dict[str, Any]:
    """The counts; the SDK's type requires the details, so what is not known is 0."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
