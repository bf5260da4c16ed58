"""What Anthropic's clients have in their history: documents, provider tools, marks and signatures. None ends a rollout."""

import logging
from contextlib import AsyncExitStack
from typing import Any

import anthropic
import pytest

from rolltap import (
    BadRequest,
    ChatDelta,
    ErrorInfo,
    FilePart,
    ImagePart,
    Message,
    TextPart,
    ToolCall,
    ToolCallDelta,
)
from rolltap.testing import MODEL, ScriptedChatBackend, ScriptedTokenBackend, assert_exact
from rolltap_plugins import anthropic_messages
from rolltap_plugins.upstream.requests import Style, chat_body

CONVERTER = anthropic_messages.AnthropicConverter()
TOOL: Any = {"name": "Read", "input_schema": {"type": "object"}}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
PDF = {
    "type": "document",
    "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQKJSVFT0YK"},
}
SEARCHED = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "s1",
    "content": [
        {"type": "web_search_result", "title": "T", "url": "https://t.test", "encrypted_content": "zzz"}
    ],
}


def decode(*messages, **fields):
    return CONVERTER.decode({"model": "m", "max_tokens": 9, "messages": list(messages), **fields})


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks):
    return {"role": "assistant", "content": list(blocks)}


@pytest.mark.parametrize(
    ("block", "parts"),
    [
        (PDF, (FilePart(media_type="application/pdf", url="data:application/pdf;base64,JVBERi0xLjQKJSVFT0YK", name="document.pdf"),)),
        (
            {"type": "document", "source": {"type": "url", "url": "https://x.test/a.pdf"}, "title": "A"},
            (FilePart(media_type="application/pdf", url="https://x.test/a.pdf", name="A"),),
        ),
        (
            {"type": "document", "source": {"type": "file", "file_id": "f1"}},
            (FilePart(media_type="", extra={"file_id": "f1"}),),
        ),
        (
            {"type": "image", "source": {"type": "file", "file_id": "f2"}},
            (FilePart(media_type="image/*", extra={"file_id": "f2"}),),
        ),
        (
            {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "a"}, IMAGE]}},
            (TextPart("a"), ImagePart(f"data:image/png;base64,{PNG}")),
        ),
        ({"type": "document", "source": {"type": "content", "content": "plain"}}, "plain"),
        ({"type": "container_upload", "file_id": "f"}, ""),
    ],
)  # fmt: skip
def test_documents_and_files(block, parts):
    (message,) = decode(user(block)).messages
    assert message.content == parts


@pytest.mark.parametrize("source", [None, {}, {"type": "base64"}, {"type": "content", "content": [1]}])
def test_a_document_that_is_none_is_named(source):
    with pytest.raises(BadRequest) as caught:
        decode(user({"type": "document", "source": source}))
    assert (caught.value.info.param or "").startswith("messages[0].content[0].source")


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        (
            [SEARCHED, FOUND, {"type": "text", "text": "y"}],
            '[web_search was called with {"query":"x"}]\n[web_search gave: T https://t.test]\ny',
        ),
        (
            [{"type": "mcp_tool_use", "id": "m1", "name": "look", "server_name": "s", "input": {}}],
            "[look was called with {}]",
        ),
        (
            [{"type": "mcp_tool_result", "tool_use_id": "m1", "content": [{"type": "text", "text": "ok"}]}],
            "[mcp gave: ok]",
        ),
        (
            [{"type": "web_fetch_tool_result", "tool_use_id": "w", "content": {"url": "u", "encrypted_x": "z"}}],
            '[web_fetch gave: {"url":"u"}]',
        ),
        (
            [{"type": "tool_search_tool_result", "tool_use_id": "w", "content": [{"type": "tool_reference", "tool_name": "Grep"}]}],
            "[tool_search gave: [the tool Grep can be used now]]",
        ),
        ([{"type": "compaction", "content": "so far: a"}, {"type": "text", "text": "b"}], "so far: a\nb"),
        ([{"type": "fallback"}, {"type": "text", "text": "b"}], "b"),
    ],
)  # fmt: skip
def test_what_the_provider_did_in_the_history_is_text(blocks, text):
    messages = decode(
        user({"type": "text", "text": "x"}), assistant(*blocks), user({"type": "text", "text": "z"})
    )
    assert messages.messages[1] == Message(role="assistant", content=text)


def test_a_tool_reference_as_a_result_is_text():
    result = {
        "type": "tool_result",
        "tool_use_id": "c",
        "content": [{"type": "tool_reference", "tool_name": "Grep"}],
    }
    (message,) = decode(user(result)).messages
    assert (message.role, message.text) == ("tool", "[the tool Grep can be used now]")


@pytest.mark.parametrize(
    ("tools", "named"),
    [
        ([{"type": "web_search_20250305", "name": "web_search"}], "web_search"),
        ([{"type": "mcp_toolset", "mcp_server_name": "s"}], "mcp_toolset"),
        (
            [
                {"type": "web_fetch_20250910", "name": "web_fetch"},
                {"type": "code_execution_20250825", "name": "x"},
            ],
            "web_fetch, x",
        ),
    ],
)
def test_a_request_left_with_no_tool_is_refused_by_name(tools, named):
    with pytest.raises(BadRequest, match=named) as caught:
        decode(user({"type": "text", "text": "search"}), tools=tools)
    assert (caught.value.info.status, caught.value.info.param) == (400, "tools")


def test_a_tool_without_a_name_is_left_out_with_a_log_line(caplog):
    with caplog.at_level(logging.INFO):
        request = decode(
            user({"type": "text", "text": "x"}), tools=[TOOL, {"type": "mcp_toolset", "mcp_server_name": "s"}]
        )
    assert [tool["function"]["name"] for tool in request.tools] == ["Read"]
    assert "mcp_toolset" in caplog.text
    with pytest.raises(BadRequest, match=r"tools\[0\]\.name is missing"):
        decode(user({"type": "text", "text": "x"}), tools=[{"input_schema": {}}])


def test_marks_reach_a_chat_upstream_on_their_parts():
    mark = {"cache_control": {"type": "ephemeral"}}
    request = decode(
        user({"type": "text", "text": "a", **mark}, {"type": "text", "text": "b"}),
        system=[{"type": "text", "text": "s", **mark}],
    )
    system, asked = chat_body(request, "m", Style())["messages"]
    assert system["content"] == [{"type": "text", "text": "s", **mark}]
    assert asked["content"] == [{"type": "text", "text": "a", **mark}, {"type": "text", "text": "\nb"}]


@pytest.mark.parametrize(
    ("effort", "sent"),
    [("low", "low"), ("medium", "medium"), ("high", "high"), ("max", "high"), (None, None)],
)
def test_effort_in_the_upstreams_words(effort, sent):
    request = decode(user({"type": "text", "text": "a"}), output_config={"effort": effort})
    assert (request.upstream.get("reasoning_effort"), request.template_kwargs) == (sent, {})


@pytest.mark.parametrize(
    ("said", "read"),
    [
        (
            ("'max_tokens' or 'max_completion_tokens' is too large: 8000. This model's maximum context length is 8192 tokens "
            "and your request has 1200 input tokens (8000 > 8192 - 1200)."),
            (1200, 8000, 8192),
        ),
        (
            ("This model's maximum context length is 4097 tokens. However, you requested 5000 tokens (1000 in the messages, "
            "4000 in the completion). Please reduce the length of the messages or completion."),
            (1000, 4000, 4097),
        ),
        (
            ("This model's maximum context length is 2048 tokens. However, you requested 1000 output tokens and your prompt "
            "contains at least 1500 input tokens, for a total of at least 2500 tokens."),
            (1500, 1000, 2048),
        ),
        (
            ("Requested token count exceeds the model's maximum context length of 8192 tokens. You requested a total of 9200 "
            "tokens: 1200 tokens from the input messages and 8000 tokens for the completion."),
            (1200, 8000, 8192),
        ),
        (
            ("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 1200 `inputs` tokens and "
            "8000 `max_new_tokens`"),
            (1200, 8000, 4096),
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("code", ["context_length_exceeded", "invalid_request"])
def test_an_answer_that_is_too_long_is_said_as_anthropic_does(said, read, code):
    """By these words Claude Code asks for fewer tokens, and by the others it shortens the conversation."""
    reply = CONVERTER.error(ErrorInfo(status=400, message=said, code=code), "req")
    message = reply.body["error"]["message"]
    assert message.startswith(
        "input length and `max_tokens` exceed context limit: {} + {} > {}".format(*read)
    )
    assert "prompt is too long" not in message


@pytest.mark.parametrize(
    "said",
    [
        "This model's maximum context length is 2048 tokens. However, your prompt contains 3000 input tokens",
        (
            "This model's maximum context length is 4096 tokens. However, you requested 9000 tokens (5000 in the messages, "
            "4000 in the completion)."
        ),
    ],
)
def test_a_prompt_that_is_too_long_is_said_as_anthropic_does(said):
    reply = CONVERTER.error(ErrorInfo(status=400, message=said, code="context_length_exceeded"), "req")
    assert reply.body["error"]["message"] == f"prompt is too long: {said}"


def test_another_refusal_keeps_its_words():
    said = "max_tokens must be at least 1"
    reply = CONVERTER.error(ErrorInfo(status=400, message=said, code="invalid_request"), "req")
    assert reply.body["error"]["message"] == said


@pytest.fixture
async def client_for():
    async with AsyncExitStack() as stack:

        async def make(server, session):
            client = anthropic.AsyncAnthropic(base_url=f"{server.url}/{session}", api_key="x", max_retries=0)
            return await stack.enter_async_context(client)

        yield make


async def answered(client, streamed, **asked):
    if not streamed:
        return await client.messages.create(model=MODEL, max_tokens=99, **asked)
    async with client.messages.stream(model=MODEL, max_tokens=99, **asked) as stream:
        return await stream.get_final_message()


@pytest.mark.parametrize("block", [IMAGE, PDF])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_file_that_a_tool_read_does_not_end_the_rollout(
    rolltap_serve, rolltap_tokenizer, client_for, block, streamed
):
    call = '<tool_call>\n{"name": "Read", "arguments": {"path": "x"}}\n</tool_call>'
    backend = ScriptedTokenBackend(rolltap_tokenizer, [call, "A dot.", "Bye."])
    server = await rolltap_serve(backend)
    session = await server.session()
    client = await client_for(server, session)
    messages: list[Any] = [{"role": "user", "content": "read it"}]
    first = await answered(client, streamed, messages=messages, tools=[TOOL])
    result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": [block]}
    messages += [{"role": "assistant", "content": first.content}, user(result)]
    second = await answered(client, streamed, messages=messages, tools=[TOOL])
    messages += [{"role": "assistant", "content": second.content}, {"role": "user", "content": "thanks"}]
    await answered(client, streamed, messages=messages, tools=[TOOL])
    (node,) = await server.nodes(session)
    assert_exact(node, *reversed(backend.calls))
    assert "this model reads text only]" in node["full_text"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_how_many_tokens_went_in_is_known_from_the_start(
    rolltap_serve, rolltap_tokenizer, client_for, streamed
):
    backend = ScriptedTokenBackend(rolltap_tokenizer, ["One."])
    server = await rolltap_serve(backend)
    client = await client_for(server, await server.session())
    asked: Any = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}
    if streamed:
        stream = await client.messages.create(stream=True, **asked)
        usage = (await anext(aiter(stream))).message.usage
        await stream.close()
    else:
        usage = (await client.messages.create(**asked)).usage
    assert usage.input_tokens == len(backend.calls[0].prompt_ids)
    assert usage.cache_read_input_tokens == 0


@pytest.mark.parametrize("streamed", [False, True])
async def test_signatures_go_to_the_client_and_back(rolltap_serve, client_for, streamed):
    """What an upstream signs its thinking and its calls with has no place in this dialect but a block sent back unread."""
    details = [{"type": "reasoning.encrypted", "data": "QUJD"}]
    signed = {"extra_content": {"google": {"thought_signature": "QUJD"}}}
    call = ToolCallDelta(index=0, id="c1", name="Read", arguments="{}", extra=signed)
    script = [
        [
            ChatDelta(reasoning="hm", extra={"reasoning_details": details, "annotations": []}),
            ChatDelta(tool_calls=[call]),
            ChatDelta(finish_reason="tool_calls"),
        ],
        "Done.",
    ]
    backend = ScriptedChatBackend(script)
    server = await rolltap_serve(backend)
    session = await server.session()
    client = await client_for(server, session)
    messages: list[Any] = [{"role": "user", "content": "read it"}]
    first = await answered(client, streamed, messages=messages, tools=[TOOL])
    assert [block.type for block in first.content] == ["thinking", "redacted_thinking", "tool_use"]
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "ok"}
    messages += [{"role": "assistant", "content": first.content}, user(result)]
    await answered(client, streamed, messages=messages, tools=[TOOL])
    said = backend.requests[1].messages[1]
    assert (said.reasoning, said.extra) == ("hm", {"reasoning_details": details})
    assert said.tool_calls == (ToolCall("Read", "{}", "c1", signed),)
    assert len(await server.nodes(session)) == 1


@pytest.mark.parametrize("data", ["rolltap.", "rolltap.!!", "rolltap.MTI=", "other"])
def test_a_block_that_holds_nothing_of_ours_is_passed_over(data):
    request = decode(
        user({"type": "text", "text": "a"}),
        assistant({"type": "redacted_thinking", "data": data}, {"type": "text", "text": "b"}),
        user({"type": "text", "text": "c"}),
    )
    assert request.messages[1] == Message(role="assistant", content="b")
