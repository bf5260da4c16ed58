"""tool_choice and parallel_tool_calls on token backends."""

import json

import pytest

from rolltap.testing import ScriptedTokenBackend

USER = {"role": "user", "content": "a"}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "get_time"}},
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture
async def ask(rolltap_serve, rolltap_tokenizer):
    async def answer(text, status=200, backend=ScriptedTokenBackend, **options):
        engine = backend(rolltap_tokenizer, [text])
        server = await rolltap_serve(engine)
        session = await server.session()
        got, body = await server.post(
            f"/{session}/v1/chat/completions", {"messages": [USER], "tools": TOOLS, **options}
        )
        assert got == status, body
        return (body["choices"][0], engine.calls[0].sampling) if status == 200 else body["error"]

    return answer


async def test_required_is_an_array_of_calls(ask):
    calls = [{"name": "get_weather", "parameters": {"city": "SF"}}, {"name": "get_time", "parameters": {}}]
    choice, sampling = await ask(json.dumps(calls), tool_choice="required")
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert [
        (c["function"]["name"], json.loads(c["function"]["arguments"]))
        for c in choice["message"]["tool_calls"]
    ] == [
        ("get_weather", {"city": "SF"}),
        ("get_time", {}),
    ]
    schema = sampling.response_format["json_schema"]["schema"]
    assert (schema["type"], schema["minItems"]) == ("array", 1)
    assert [one["properties"]["name"]["const"] for one in schema["items"]["anyOf"]] == [
        "get_weather",
        "get_time",
    ]
    assert schema["items"]["anyOf"][0]["properties"]["parameters"] == CITY


async def test_a_named_tool_gets_the_object_of_its_arguments(ask):
    choice, sampling = await ask('{"city": "Köln"}', tool_choice=NAMED)
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
        "get_weather",
        {"city": "Köln"},
    )
    assert sampling.response_format["json_schema"]["schema"] == CITY


async def test_one_call_at_a_time(ask):
    raw = "".join(
        f'<tool_call>{{"name": "get_time", "arguments": {{"n": {n}}}}}</tool_call>' for n in range(3)
    )
    choice, _ = await ask(raw, parallel_tool_calls=False)
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"n": 0}
    _, sampling = await ask(
        '[{"name": "get_time", "parameters": {}}]', parallel_tool_calls=False, tool_choice="required"
    )
    assert sampling.response_format["json_schema"]["schema"]["maxItems"] == 1


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_time"}}])
async def test_a_demanded_call_goes_before_the_form_of_an_answer(ask, choice):
    form = {"type": "json_schema", "json_schema": {"name": "r", "schema": {"type": "object"}}}
    said = '[{"name": "get_time", "parameters": {}}]' if choice == "required" else "{}"
    answer, sampling = await ask(said, tool_choice=choice, response_format=form)
    assert [call["function"]["name"] for call in answer["message"]["tool_calls"]] == ["get_time"]
    assert sampling.response_format["json_schema"]["name"] == "tool_calls"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tool_choice": "required", "tools": []}, "no tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "fly"}}}, "'fly'"),
    ],
)
async def test_what_cannot_be_is_said(ask, options, words):
    error = await ask("x", status=400, **options)
    assert words in error["message"]


async def test_a_backend_without_structured_outputs_says_so(ask):
    class Plain(ScriptedTokenBackend):
        parameters = frozenset({"max_tokens"})

    error = await ask("x", status=400, backend=Plain, tool_choice="required")
    assert error["param"] == "tool_choice"
    assert "structured outputs" in error["message"]
