"""Replies of the Responses API: the response object and its output items."""

from collections.abc import Mapping
from typing import Any

from rolltap import ChatRequest, Choice, Completion, FinishReason, ToolCall, Usage
from rolltap_plugins.openai_dialects.custom import as_input
from rolltap_plugins.openai_dialects.replies import logprobs_body
from rolltap_plugins.openai_dialects.responses.sealed import sealed
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
        "background": False,
        "completed_at": None,
        "instructions": None,
        "max_output_tokens": sampling.max_tokens,
        "max_tool_calls": None,
        "metadata": request.client_fields.get("metadata") or {},
        "model": completion.model,
        "output": [],
        "parallel_tool_calls": True if parallel is None else parallel,
        "previous_response_id": request.previous_id,
        "prompt_cache_key": None,
        "prompt_cache_retention": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": request.keep,
        "temperature": sampling.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": echoed_choice(request),
        "tools": echoed_tools(request),
        "top_logprobs": 0,
        "top_p": sampling.top_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "truncation": "disabled",
        "usage": None,
        "user": None,
        **state.asked,
    }


def finished(begun: dict[str, Any], completion: Completion, items: list[dict[str, Any]]) -> dict[str, Any]:
    """The same response when it is over."""
    reason = finish_reason(completion)
    complete = reason not in _INCOMPLETE
    return begun | {
        "model": completion.model,
        "status": "completed" if complete else "incomplete",
        "completed_at": (completion.ended or completion.created) if complete else None,
        "incomplete_details": None if complete else {"reason": _INCOMPLETE[reason]},
        "output": items,
        "usage": usage(completion.usage),
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
    kept = carried(choice.extra)
    if choice.reasoning or kept:
        name = item_id(completion.id, "rs", 0)
        items.append(reasoning_item(name, status, choice.reasoning or None, kept))
    if choice.text or not (choice.reasoning or choice.tool_calls):
        logprobs = logprobs_body(choice.logprobs or [])
        part = text_part(choice.text, logprobs)
        items.append(message_item(item_id(completion.id, "msg", 0), status, [part]))
    for number, call in enumerate(choice.tool_calls):
        items.append(call_item(item_id(completion.id, "fc", number), status, call, request))
    return items


def carried(extra: Mapping[str, Any]) -> dict[str, Any]:
    """What an upstream said beside a message that it may want back; empty fields say nothing."""
    return {name: value for name, value in extra.items() if value}


def item_id(reply_id: str, kind: str, number: int) -> str:
    """An item's id: the number counts the reply's items of its kind, so that it is the same however often it is given."""
    return f"{kind}_{reply_id.partition('_')[2]}_{number}"


def text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    """The text of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def reasoning_part(text: str) -> dict[str, Any]:
    """The text of thinking."""
    return {"type": "reasoning_text", "text": text}


def message_item(name: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    """What was said."""
    return {"id": name, "type": "message", "status": status, "role": "assistant", "content": content}


def reasoning_item(
    name: str, status: str, text: str | None, kept: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What was thought, None while nothing has been; and what the client is to carry unread to the next request."""
    content = [] if text is None else [reasoning_part(text)]
    item = {"id": name, "type": "reasoning", "status": status, "summary": [], "content": content}
    return {**item, "encrypted_content": sealed(kept)} if kept else item


def call_item(name: str, status: str, call: ToolCall, request: ChatRequest) -> dict[str, Any]:
    """A call, in the namespace that its tool came in; of a freeform tool with its input as text."""
    state = state_of(request)
    custom = call.name in state.freeform
    item = {
        **call.extra,
        "id": name,
        "type": "custom_tool_call" if custom else "function_call",
        "status": status,
        "call_id": call.id,
        "name": call.name,
        **({"input": as_input(call.arguments)} if custom else {"arguments": call.arguments}),
    }
    if namespace := state.namespaces.get(call.name):
        item["namespace"] = namespace
    return item


def usage(counted: Usage) -> dict[str, Any]:
    """The counts; the SDK's type requires the details, so what is not known is 0."""
    return {
        "input_tokens": counted.prompt_tokens,
        "input_tokens_details": {"cached_tokens": counted.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": counted.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": counted.reasoning_tokens or 0},
        "total_tokens": counted.prompt_tokens + counted.completion_tokens,
    }
