"""The chat backends in front of a real vLLM: any-llm's SDK and our own, each through a whole server."""

import pytest

from rolltap.testing import serve

pytestmark = pytest.mark.live

ASK = {"model": "test-model", "messages": [{"role": "user", "content": "What is the capital of France?"}]}


@pytest.fixture(params=["anyllm", "openai"])
async def server(request, live_vllm, monkeypatch):
    monkeypatch.setenv("SMOL_KEY", "unused")
    table = {"kind": request.param, "api_base": f"{live_vllm.completions_url}/v1", "model": "smol"}
    table |= {"api_key_env": "SMOL_KEY"}
    if request.param == "anyllm":
        table["provider"] = "openai"
    async with serve(model={"backends": [table]}) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
async def test_a_real_model_answers(server, openai_client, stream):
    session = await server.session()
    client = openai_client(server, session)
    if stream:
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                **ASK, temperature=0, stream=True, stream_options={"include_usage": True}
            )
        ]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        usage = chunks[-1].usage
        assert len(chunks) > 5
    else:
        answer = await client.chat.completions.create(**ASK, temperature=0)
        text, usage = answer.choices[0].message.content, answer.usage
    assert "Paris" in text
    assert usage.prompt_tokens > 10
    assert usage.completion_tokens > 3
    (node,) = await server.nodes(session)
    assert node["metadata"]["trainable"] is False
    assert text in node["full_text"]


async def test_its_refusal_keeps_its_status(server):
    status, body = await server.post(
        "/v1/chat/completions", {**ASK, "messages": [{"role": "user", "content": "word " * 5000}]}
    )
    assert status == 400
    assert body["error"]["code"] == "context_length_exceeded"
