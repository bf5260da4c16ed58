"""The same conversation on vLLM, on SGLang and in this process, by changing `kind`; aborts are gone on from."""

import shutil
from dataclasses import replace

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from scripted_sglang import FORMS, ScriptedSGLang
from scripted_vllm import Choice, ScriptedVLLM

IDS = [20, 21, 22]
LOGPROBS = [-0.5, -0.25, -1.5]
SAID = list(zip(IDS, LOGPROBS, strict=True))


@pytest.fixture
async def serving(aiohttp_server, rolltap_serve, rolltap_tokenizer):
    """A function that serves a model on an engine of a kind."""

    async def start(kind, engine):
        if kind == "local":
            backend = {"kind": kind, "model": engine}
        else:
            server = await aiohttp_server(engine.app())
            backend = {"kind": kind, "url": str(server.make_url("/"))}
        table = {"name": "m", "tokenizer": rolltap_tokenizer, "backends": [backend]}
        return await rolltap_serve(config={"models": [table]})

    return start


async def talk(server, *, stream):
    """A conversation of two turns; its one leaf."""
    session = await server.session()
    messages = [{"role": "user", "content": "hi"}]
    for _ in range(2):
        body = {"model": "m", "messages": messages, "max_tokens": 3}
        _, answer = await server.post(f"/{session}/v1/chat/completions", body)
        messages += [answer["choices"][0]["message"], {"role": "user", "content": "more"}]
    if stream:
        body = {"model": "m", "messages": messages, "max_tokens": 3, "stream": True}
        async with server.http.post(f"/{session}/v1/chat/completions", json=body) as response:
            assert "[DONE]" in await response.text()
    (leaf,) = await server.nodes(session)
    return leaf


def engine(kind):
    if kind == "vllm":
        return ScriptedVLLM([Choice(SAID, finish_reason="length")], max_model_len=2000)
    return ScriptedSGLang(script=SAID, finish={"type": "length", "length": 3})


@pytest.mark.parametrize("stream", [True, False])
async def test_one_conversation_gives_one_record_on_every_engine(serving, stream):
    leaves = [await talk(await serving(kind, engine(kind)), stream=stream) for kind in ("vllm", "sglang")]
    for leaf in leaves:
        assert leaf["metadata"]["trainable"]
        shown = [token for token in leaf["masked_tokens"] if token != -100]
        assert shown == IDS * (3 if stream else 2)
    for name in ("tokens", "masked_tokens", "logprobs", "full_text"):
        assert leaves[0][name] == leaves[1][name]


@pytest.fixture
def model(tmp_path, rolltap_tokenizer):
    """The folder of a tiny random model with the tests' tokenizer."""
    shutil.copytree(rolltap_tokenizer, tmp_path / "model")
    config = LlamaConfig(
        vocab_size=1024, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.mark.parametrize("stream", [True, False])
async def test_the_same_conversation_runs_in_this_process(serving, model, stream):
    """Its words are its own; the prompts, and how the record is built of them, are those of the other engines."""
    here = await talk(await serving("local", model), stream=stream)
    there = await talk(await serving("vllm", engine("vllm")), stream=stream)
    assert here["metadata"]["trainable"]
    start = there["masked_tokens"].index(IDS[0])
    assert here["tokens"][:start] == there["tokens"][:start]
    turns = 3 if stream else 2
    for leaf in (here, there):
        generated = [token for token in leaf["masked_tokens"] if token != -100]
        assert 1 <= len(generated) <= 3 * turns
        assert len(leaf["tokens"]) == len(leaf["masked_tokens"]) == len(leaf["logprobs"])


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("form", FORMS)
async def test_an_abort_is_gone_on_from(serving, stream, after, form):
    sglang = replace(engine("sglang"), **FORMS[form])
    sglang.aborts_at = after
    said = sglang.script
    server = await serving("sglang", sglang)
    session = await server.session()
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": stream}

    def saw(ids):
        """The engine goes on with the rest of what it would have said, after ids that it has said."""
        if sglang.asked and len(sglang.asked) > 1:
            sglang.script = said[after:]
        return ids

    sglang.saw = saw
    async with server.http.post(f"/{session}/v1/chat/completions", json=body) as response:
        assert response.status == 200
        await response.read()
    (leaf,) = await server.nodes(session)
    assert leaf["tokens"][-3:] == IDS
    assert leaf["logprobs"][-3:] == LOGPROBS
    assert leaf["metadata"]["finish_reason"] == "length"
    assert leaf["metadata"]["continued"] == 1
    assert leaf["metadata"]["trainable"]
    first, second = (sent for sent, _ in sglang.asked)
    assert second["input_ids"] == [*first["input_ids"], *IDS[:after]]
    assert second["sampling_params"]["max_new_tokens"] == 3 - after
