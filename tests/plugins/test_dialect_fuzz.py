"""Whatever JSON a client sends, a converter reads it or says what is wrong with it."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltap import BadRequest, ErrorInfo
from rolltap_plugins.anthropic_messages import AnthropicConverter
from rolltap_plugins.google_generate import GoogleConverter
from rolltap_plugins.openai_dialects.chat import ChatConverter
from rolltap_plugins.openai_dialects.completions import CompletionsConverter
from rolltap_plugins.openai_dialects.responses import ResponsesConverter

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BODIES: list[tuple[Any, dict[str, Any]]] = [
    (
        ChatConverter(),
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "s"},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "t"},
                        {"type": "image_url", "image_url": {"url": "u"}},
                    ],
                },
                {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "r"},
                {"role": "tool", "tool_call_id": "c", "content": "x"},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "stop": ["a"],
            "logit_bias": {"5": 1},
            "logprobs": True,
            "top_logprobs": 2,
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": {"k": 1},
        },
    ),
    (
        CompletionsConverter(),
        {
            "model": "m",
            "prompt": [[1, 2]],
            "n": 2,
            "best_of": 2,
            "logprobs": 1,
            "stop": "a",
            "seed": 1,
            "top_k": 3,
        },
    ),
    (
        GoogleConverter(),
        {
            "model": "m",
            "contents": [
                {
                    "role": "user",
                    "parts": [{"text": "t"}, {"inlineData": {"mimeType": "image/png", "data": "AA=="}}],
                },
                {
                    "role": "model",
                    "parts": [
                        {"text": "h", "thought": True},
                        {"functionCall": {"name": "f", "args": {"a": "b"}}},
                    ],
                },
                {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "x"}}}]},
            ],
            "systemInstruction": {"parts": [{"text": "s"}]},
            "tools": [
                {"functionDeclarations": [{"name": "f", "parameters": {"type": "OBJECT"}}]},
                {"googleSearch": {}},
            ],
            "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
            "generationConfig": {
                "maxOutputTokens": 5,
                "stopSequences": ["a"],
                "responseMimeType": "application/json",
                "responseSchema": {"type": "OBJECT"},
                "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 0},
            },
        },
    ),
    (
        AnthropicConverter(),
        {
            "model": "m",
            "max_tokens": 5,
            "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}, "x"],
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "source": {"type": "url", "url": "u"}},
                        {"type": "document", "source": {"type": "base64", "data": "AA=="}, "title": "t"},
                        {"type": "document", "source": {"type": "content", "content": []}},
                    ],
                },
                {
                    "role": "assistant",
                    "content": [
                        {"type": "redacted_thinking", "data": "rolltap.e30="},
                        {"type": "server_tool_use", "name": "s", "input": {}},
                        {"type": "web_search_tool_result", "content": [{"title": "t", "url": "u"}]},
                        {"type": "thinking", "thinking": "t", "signature": "s"},
                        {"type": "text", "text": "t"},
                        {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "c",
                            "content": [{"type": "text", "text": "t"}],
                        }
                    ],
                },
            ],
            "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
            "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
        },
    ),
    (
        ResponsesConverter(),
        {
            "model": "m",
            "instructions": "i",
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "t"},
                        {"type": "input_image", "image_url": "u"},
                    ],
                },
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}], "content": None},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "t"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {
                    "type": "function_call_output",
                    "call_id": "c",
                    "output": [{"type": "input_text", "text": "t"}],
                },
            ],
            "tools": [
                {"type": "function", "name": "f", "parameters": SCHEMA},
                {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]},
            ],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "f"}],
            },
            "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
            "reasoning": {"effort": "low"},
            "include": ["message.output_text.logprobs"],
        },
    ),
]

JSON: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything inside a JSON value."""
    if isinstance(value, dict):
        steps = list(value.items())
    elif isinstance(value, list):
        steps = list(enumerate(value))
    else:
        return []
    return [found for key, inner in steps for found in [(*path, key), *places(inner, (*path, key))]]


@st.composite
def damaged(draw: st.DrawFn, body: dict[str, Any]) -> dict[str, Any]:
    """The body with some of its values replaced or removed."""
    body = copy.deepcopy(body)
    for _ in range(draw(st.integers(1, 3))):
        known = places(body)
        if not known:
            break
        *outer, last = draw(st.sampled_from(known))
        holder: Any = body
        for key in outer:
            holder = holder[key]
        if draw(st.booleans()):
            del holder[last]
        else:
            holder[last] = draw(JSON)
    return body


def refusal(converter: Any, body: dict[str, Any]) -> ErrorInfo | None:
    """What is wrong with the body; None where it is read."""
    try:
        converter.decode(body)
    except BadRequest as error:
        return error.info
    return None


def name(value: Any) -> str:
    return type(value).__name__


@pytest.mark.parametrize(("converter", "body"), BODIES, ids=name)
def test_undamaged_bodies_are_read(converter, body):
    assert refusal(converter, body) is None


@pytest.mark.parametrize(("converter", "body"), BODIES, ids=name)
@given(data=st.data())
def test_damaged_bodies_are_read_or_refused_by_name(converter, body, data):
    info = refusal(converter, data.draw(damaged(body)))
    assert info is None or (info.status == 400 and info.param and info.param in info.message)


@pytest.mark.parametrize("converter", [converter for converter, _ in BODIES], ids=name)
@given(
    body=st.dictionaries(st.sampled_from(["messages", "input", "prompt", "tools", "n", "stop", "x"]), JSON)
)
def test_any_object_is_read_or_refused_by_name(converter, body):
    info = refusal(converter, body)
    assert info is None or (info.param and info.param in info.message)
