"""Demanded calls and structured outputs through the whole server: a real vLLM, the real OpenAI client, a recorded session."""

import json
import re

import openai
import pytest

pytestmark = pytest.mark.live

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Looks up the {what} of a city.",
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string", "maxLength": 20}, "days": {"enum": [1, 2, 3]}},
                "required": [key, "days"],
                "additionalProperties": False,
            },
        },
    }
    for name, what, key in (("get_weather", "weather", "city"), ("get_time", "time", "zone"))
]
KEYS = {"get_weather": {"city", "days"}, "get_time": {"zone", "days"}}
USER = {"role": "user", "content": "What is the weather in Paris, and what time is it there?"}
NAMED = {"type": "function", "function": {"name": "get_time"}}


@pytest.fixture(params=["tokens_url", "completions_url"])
async def chat(request, live_vllm, rolltap_serve):
    """A function that asks a new session, streamed and not, with the same seed: the choice and the session's node."""
    url = getattr(live_vllm, request.param)
    model = {"name": "smol", "tokenizer": live_vllm.folder, "backends": [{"kind": "vllm", "url": url}]}
    server = await rolltap_serve(config={"models": [model]})

    async def ask(**options):
        session = await server.session()
        async with openai.AsyncOpenAI(base_url=f"{server.url}/{session}/v1", api_key="none") as client:
            asked = {"model": "smol", "messages": [USER], "temperature": 0.0, "max_tokens": 200, **options}
            plain = (await client.chat.completions.create(**asked)).choices[0]
            stream = await client.chat.completions.create(**asked, stream=True)
            chunks = [choice async for chunk in stream for choice in chunk.choices]
        message = plain.message
        assert chunks[-1].finish_reason == plain.finish_reason
        assert "".join(chunk.delta.content or "" for chunk in chunks) == (message.content or "")
        calls = [call.function for chunk in chunks for call in chunk.delta.tool_calls or ()]
        whole = [call.function for call in message.tool_calls or ()]
        assert [(call.name, call.arguments) for call in calls] == [
            (call.name, call.arguments) for call in whole
        ]
        nodes = await server.nodes(session)
        assert all(node["metadata"]["trainable"] for node in nodes)
        return plain

    return ask


def called(choice):
    calls = choice.message.tool_calls or ()
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


async def test_required(chat):
    choice = await chat(tools=TOOLS, tool_choice="required")
    calls = called(choice)
    assert calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    for name, arguments in calls:
        assert arguments.keys() == KEYS[name]
        assert arguments["days"] in {1, 2, 3}


async def test_one_call_at_a_time(chat):
    choice = await chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    assert len(called(choice)) == 1
    assert choice.finish_reason == "tool_calls"


async def test_named(chat):
    choice = await chat(tools=TOOLS, tool_choice=NAMED)
    ((name, arguments),) = called(choice)
    assert (name, arguments.keys()) == ("get_time", KEYS["get_time"])


async def test_none_leaves_the_answer_as_it_is(chat):
    choice = await chat(tools=TOOLS, tool_choice="none")
    assert choice.message.tool_calls is None
    assert choice.message.content


CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}


async def test_response_format(chat):
    schema = {"name": "city", "schema": {**CITY, "additionalProperties": False}}
    choice = await chat(response_format={"type": "json_schema", "json_schema": schema})
    assert json.loads(choice.message.content)["city"] in {"Paris", "Rome"}
    choice = await chat(response_format={"type": "json_object"}, max_tokens=30)
    begun = choice.message.content.lstrip()
    assert begun.startswith("{")
    assert choice.finish_reason == "length" or isinstance(json.loads(begun), dict)


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        ({"regex": r"\d{2}:\d{2}"}, r"\d{2}:\d{2}"),
        ({"choice": ["sunny", "rainy"]}, "sunny|rainy"),
        ({"grammar": 'root ::= "It is " ("hot" | "cold")'}, "It is (hot|cold)"),
    ],
)
async def test_vllms_own_structured_outputs(chat, wanted, pattern):
    choice = await chat(extra_body={"structured_outputs": wanted})
    assert re.fullmatch(pattern, choice.message.content)


async def test_two_demands_at_once_are_refused(chat):
    with pytest.raises(openai.BadRequestError):
        await chat(tools=TOOLS, tool_choice="required", extra_body={"structured_outputs": {"choice": ["a"]}})


async def test_a_demanded_call_goes_before_the_form_of_an_answer(chat):
    choice = await chat(tools=TOOLS, tool_choice="required", response_format={"type": "json_object"})
    assert choice.message.tool_calls
