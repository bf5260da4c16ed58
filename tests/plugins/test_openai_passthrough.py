"""What a client says beyond rolltap's own fields reaches the upstream, and what the upstream says reaches the client."""

from typing import Any

import openai
import pytest

from rolltap import ChatRequest
from rolltap.testing import MODEL
from rolltap_plugins.upstream.requests import Style, chat_body
from scripted_openai import DONE, backend_table, call, chunk, completion, scripted_upstream

PNG = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="
PDF = "data:application/pdf;base64,JVBERi0xLjQKJSVFT0YK"
TOOLS: Any = [
    {"type": "function", "function": {"name": "w", "parameters": {"type": "object", "properties": {}}}}
]
CACHED = {"cache_control": {"type": "ephemeral"}}
SIGNED = {"extra_content": {"google": {"thought_signature": "QUJD"}}}


@pytest.fixture
async def upstream(monkeypatch):
    monkeypatch.setenv("TEST_KEY", "sk-upstream")
    async with scripted_upstream() as running:
        yield running


@pytest.fixture(params=["openai", "anyllm"])
async def client(request, rolltap_serve, upstream, openai_client):
    table = backend_table(request.param, upstream)
    server = await rolltap_serve(config={"models": [{"name": MODEL, "backends": [table]}]})
    return openai_client(server, await server.session())


async def sent(client, upstream, messages: Any, **fields: Any) -> Any:
    upstream.script = [completion({"content": "ok"})]
    await client.chat.completions.create(model=MODEL, messages=messages, **fields)
    return upstream.requests[-1]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": "a", **CACHED},
        {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
        {"type": "image_url", "image_url": {"url": PNG}, **CACHED},
        {"type": "file", "file": {"filename": "b.pdf", "file_data": PDF}},
        {"type": "file", "file": {"filename": "b.pdf", "file_data": PDF}, **CACHED},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "mp3"}},
        {"type": "audio_url", "audio_url": {"url": "https://x/y.wav"}},
        {"type": "video_url", "video_url": {"url": "https://x/y.mp4"}},
    ],
)
async def test_parts_reach_the_upstream_unchanged(client, upstream, part):
    messages = [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]
    assert (await sent(client, upstream, messages))["messages"] == messages


async def test_a_result_may_hold_parts_too(client, upstream):
    messages = [
        {"role": "user", "content": "look"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "w", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "seen", **CACHED}]},
    ]
    assert (await sent(client, upstream, messages, tools=TOOLS))["messages"] == messages


async def test_what_an_upstream_caches_and_bills_by_reaches_it(client, upstream):
    fields: Any = {"prompt_cache_key": "k", "service_tier": "flex", "user": "u"}
    body = await sent(client, upstream, [{"role": "user", "content": "a"}], **fields)
    assert {name: body[name] for name in fields} == fields


@pytest.mark.parametrize("stored", [True, False, None])
def test_openai_itself_gets_metadata_with_what_it_stores_alone(stored):
    told = {"store": stored, "metadata": {"a": "b"}, "safety_identifier": "s"}
    request = ChatRequest(client_fields={name: value for name, value in told.items() if value is not None})
    own = chat_body(request, "m", Style(openai=True))
    assert ("metadata" in own, own.get("store"), own["safety_identifier"]) == (bool(stored), stored, "s")
    assert not told.keys() & chat_body(request, "m", Style()).keys()


def test_a_hint_that_only_openais_models_know_goes_to_them_alone():
    request = ChatRequest(upstream={"verbosity": "low", "prompt_cache_key": "k"})
    assert chat_body(request, "m", Style(openai=True)).items() >= request.upstream.items()
    assert "verbosity" not in chat_body(request, "m", Style())


async def test_further_fields_of_messages_and_calls_reach_the_upstream(client, upstream):
    messages = [
        {"role": "user", "content": "weather", "x_note": {"a": [1]}},
        {
            "role": "assistant",
            "content": "",
            "reasoning_details": [{"type": "reasoning.encrypted", "data": "zz"}],
            "tool_calls": [
                {
                    "id": "call_9",
                    "type": "function",
                    "function": {"name": "w", "arguments": "{}", "x_inside": 1},
                    **SIGNED,
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_9", "content": "sun", "x_took_s": 1},
    ]
    assert (await sent(client, upstream, messages, tools=TOOLS))["messages"] == messages


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_the_upstream_says_of_its_calls_and_thinking_comes_back_and_goes_up_again(
    client, upstream, streamed
):
    details = [
        {"type": "reasoning.text", "text": "Hm"},
        {"type": "reasoning.encrypted", "data": "zz"},
    ]
    if streamed:
        upstream.script = [
            [
                chunk({"role": "assistant", "reasoning_details": details[:1]}),
                chunk({"reasoning_details": details[1:]}),
                call(0, "w", "{}", id="call_9", **SIGNED),
                chunk(finish="tool_calls"),
                DONE,
            ]
        ]
    else:
        made = {"id": "call_9", "type": "function", "function": {"name": "w", "arguments": "{}"}, **SIGNED}
        said = {"content": None, "reasoning_details": details, "tool_calls": [made]}
        upstream.script = [completion(said, "tool_calls")]
    asked: Any = [{"role": "user", "content": "weather"}]
    if streamed:
        given: dict[str, Any] = {"role": "assistant", "reasoning_details": []}
        async for part in await client.chat.completions.create(
            model=MODEL, messages=asked, tools=TOOLS, stream=True
        ):
            delta = part.choices[0].delta.model_dump(exclude_unset=True)
            given["reasoning_details"] += delta.get("reasoning_details", ())
            given.update({"tool_calls": delta["tool_calls"]} if "tool_calls" in delta else {})
    else:
        reply = await client.chat.completions.create(model=MODEL, messages=asked, tools=TOOLS)
        given = reply.choices[0].message.model_dump(exclude_none=True)
    assert given["reasoning_details"] == details
    assert given["tool_calls"][0]["extra_content"] == SIGNED["extra_content"]
    result = {"role": "tool", "tool_call_id": given["tool_calls"][0]["id"], "content": "sun"}
    body = await sent(client, upstream, [*asked, given, result], tools=TOOLS)
    assert body["messages"][1]["reasoning_details"] == details
    assert body["messages"][1]["tool_calls"][0]["extra_content"] == SIGNED["extra_content"]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("provider", ["", "openai", "deepseek", "vllm"])
async def test_thinking_beside_a_call_goes_up_again(rolltap_serve, upstream, openai_client, provider, name):
    table = backend_table("anyllm" if provider else "openai", upstream)
    table |= {"provider": provider} if provider else {}
    server = await rolltap_serve(config={"models": [{"name": MODEL, "backends": [table]}]})
    made = {"id": "call_9", "type": "function", "function": {"name": "w", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "weather"},
        {"role": "assistant", "content": "", name: "must ask", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "call_9", "content": "sun"},
    ]
    body = await sent(openai_client(server), upstream, messages, tools=TOOLS)
    assert body["messages"][1]["reasoning_content"] == "must ask"
    assert body["messages"][1]["tool_calls"] == [made]


@pytest.mark.parametrize("client", ["openai"], indirect=True)  # any-llm's own types know text alone
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_id_that_is_a_number_is_text_here_and_a_number_there(client, upstream, streamed):
    function = {"name": "w", "arguments": "{}"}
    upstream.script = [
        [call(0, "w", "{}", id=4), chunk(finish="tool_calls"), DONE]
        if streamed
        else completion(
            {"content": None, "tool_calls": [{"id": 4, "type": "function", "function": function}]}
        )
    ]
    asked: Any = [{"role": "user", "content": "x"}]
    if streamed:
        async with client.chat.completions.stream(model=MODEL, messages=asked, tools=TOOLS) as stream:
            reply = await stream.get_final_completion()
    else:
        reply = await client.chat.completions.create(model=MODEL, messages=asked, tools=TOOLS)
    message = reply.choices[0].message
    assert message.tool_calls[0].id == "4"
    result = {"role": "tool", "tool_call_id": "4", "content": "sun"}
    body = await sent(client, upstream, [*asked, message, result], tools=TOOLS)
    assert (body["messages"][1]["tool_calls"][0]["id"], body["messages"][2]["tool_call_id"]) == (4, 4)


async def test_what_nobody_can_carry_is_named(client):
    messages: Any = [{"role": "assistant", "audio": {"id": "audio_1"}}]
    with pytest.raises(openai.BadRequestError, match=r"messages\[0\]\.audio"):
        await client.chat.completions.create(model=MODEL, messages=messages)
