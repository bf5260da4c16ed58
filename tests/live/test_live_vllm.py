"""The vLLM backend on real servers: exact ids and logprobs over both endpoints, streamed, cancelled, refused."""

import asyncio
import json
import time
from contextlib import aclosing

import aiohttp
import pytest

from rolltap import Sampling, TokenRequest, UpstreamError
from rolltap_plugins.upstream.sse import EventStream
from rolltap_plugins.vllm import Options, VLLMBackend
from rolltap_plugins.vllm.parameters import request_body
from scripted_vllm import Choice, ScriptedVLLM

pytestmark = pytest.mark.live

END_OF_TURN = 2
ARGUMENTS = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "2048"]
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


@pytest.fixture(scope="session")
def tokenizer(model_folder):
    from transformers import AutoTokenizer  # noqa: PLC0415 - heavy

    return AutoTokenizer.from_pretrained(model_folder)


@pytest.fixture(scope="session")
def prompt(tokenizer):
    text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    return tokenizer.encode(text)


@pytest.fixture
async def connect(live_vllm):
    """A function that makes a started backend for one of the servers."""
    backends = []

    async def start(endpoint):
        url = live_vllm.tokens_url if endpoint == "generate" else live_vllm.completions_url
        backend = VLLMBackend(Options(url=url), "smol")
        backends.append(backend)
        await backend.start()
        return backend

    yield start
    for backend in backends:
        await backend.close()


@pytest.fixture(params=["generate", "completions"])
async def backend(request, connect):
    return await connect(request.param)


def asking(prompt, *, stream=True, **sampling):
    return TokenRequest(prompt_ids=prompt, sampling=Sampling(**sampling), stream=stream)


async def collect(backend, prompt, **asked):
    return [delta async for delta in backend.generate(asking(prompt, **asked))]


def joined(deltas, index=0):
    mine = [delta for delta in deltas if delta.index == index]
    return [token for delta in mine for token in delta.token_ids], [
        value for delta in mine for value in delta.logprobs
    ]


async def test_each_server_is_asked_through_its_best_endpoint(connect):
    expected = {
        "engine": "vLLM 0.32.0",
        "model": "smol",
        "max_model_len": 2048,
        "echo": True,
        "logprobs": True,
    }
    expected |= {"logprobs_mode": "raw_logprobs"}
    for endpoint, path in (("generate", "/inference/v1/generate"), ("completions", "/v1/completions")):
        assert await (await connect(endpoint)).check() == {**expected, "endpoint": path}


async def test_a_greedy_answer_with_its_echo(backend, prompt, tokenizer):
    deltas = await collect(backend, prompt, temperature=0.0)
    ids, logprobs = joined(deltas)
    assert tokenizer.decode(ids) == "The capital of France is Paris.<|im_end|>"
    assert ids[-1] == END_OF_TURN
    assert len(logprobs) == len(ids)
    assert all(value <= 0 for value in logprobs)
    assert deltas[0].prompt_token_ids == prompt
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", None)


async def test_both_endpoints_agree(connect, prompt):
    answers = [joined(await collect(await connect(endpoint), prompt, temperature=0.0, max_tokens=40, ignore_eos=True))
               for endpoint in ("generate", "completions")]  # fmt: skip
    (ids, logprobs), (other_ids, other_logprobs) = answers
    assert ids == other_ids
    assert logprobs == pytest.approx(other_logprobs, abs=1e-3)


async def test_logprobs_are_the_models_own_before_temperature(backend, prompt, model_folder):
    import torch  # noqa: PLC0415 - heavy
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - heavy

    ids, logprobs = joined(await collect(backend, prompt, temperature=0.7, seed=1, max_tokens=20))
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    with torch.inference_mode():
        rows = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    assert logprobs == pytest.approx([rows[place, token].item() for place, token in enumerate(ids)], abs=2e-3)


async def test_tokens_come_one_by_one_as_they_are_made(backend, prompt):
    times, counts = [], []
    async for delta in backend.generate(asking(prompt, max_tokens=60, ignore_eos=True, temperature=0.0)):
        times.append(time.monotonic())
        counts.append(len(delta.token_ids))
    assert sum(counts) == 60
    assert len(counts) > 30
    assert times[len(times) // 2] - times[0] > (times[-1] - times[0]) / 4


async def test_four_choices(backend, prompt):
    deltas = await collect(backend, prompt, n=4, temperature=1.0, seed=5, max_tokens=12, ignore_eos=True)
    choices = [joined(deltas, index) for index in range(4)]
    assert [len(ids) for ids, _ in choices] == [12] * 4
    assert [len(logprobs) for _, logprobs in choices] == [12] * 4
    assert len({tuple(ids) for ids, _ in choices}) > 1
    assert sorted(delta.index for delta in deltas if delta.finish_reason == "length") == [0, 1, 2, 3]


@pytest.mark.parametrize("stop", ["s Par", "France"])
async def test_a_stop_string_ends_after_the_token_that_completes_it(backend, prompt, tokenizer, stop):
    deltas = await collect(backend, prompt, temperature=0.0, stop=[stop])
    ids, logprobs = joined(deltas)
    assert stop in tokenizer.decode(ids)
    assert stop not in tokenizer.decode(ids[:-1])
    assert len(logprobs) == len(ids)
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", stop)


async def test_alternatives_are_the_most_likely_and_the_sampled(backend, prompt):
    deltas = await collect(backend, prompt, temperature=0.0, top_logprobs=3)
    for delta in deltas:
        for token, logprob, top in zip(delta.token_ids, delta.logprobs, delta.top_logprobs, strict=True):
            assert len(top) == 3
            assert top[token] == logprob == max(top.values())


async def test_a_context_that_is_full_and_one_that_is_too_full(backend, prompt):
    long = (prompt * 200)[:2040]
    deltas = await collect(backend, long, temperature=0.0, max_tokens=500, ignore_eos=True)
    assert len(joined(deltas)[0]) == 8
    assert deltas[-1].finish_reason == "length"
    with pytest.raises(UpstreamError) as caught:
        await collect(backend, (prompt * 200)[:2100])
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


async def test_wrong_values_are_the_servers_to_refuse(backend, prompt):
    for wrong, said in (({"temperature": -1.0}, "temperature"), ({"n": 2, "temperature": 0.0}, "greedy")):
        with pytest.raises(UpstreamError, match=said) as caught:
            await collect(backend, prompt, **wrong)
        assert caught.value.status == 400
    with pytest.raises(UpstreamError, match="out of vocabulary") as caught:
        await collect(backend, [999_999])
    assert caught.value.status == 400


async def test_output_is_held_to_a_schema(backend, prompt, tokenizer):
    city = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    schema = {**city, "additionalProperties": False}
    response_format = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    deltas = await collect(backend, prompt, temperature=0.0, response_format=response_format, max_tokens=60)
    ids, _ = joined(deltas)
    assert json.loads(tokenizer.decode(ids, skip_special_tokens=True))["city"] in {"Paris", "Rome"}


async def test_vllms_own_parameters_reach_the_engine(backend, prompt):
    ids, _ = joined(
        await collect(backend, prompt, max_tokens=6, ignore_eos=True, extra={"allowed_token_ids": [7042, 30]})
    )
    assert set(ids) <= {7042, 30}
    deltas = await collect(
        backend, prompt, max_tokens=16, ignore_eos=True, temperature=0.0, extra={"stream_interval": 5}
    )
    assert max(len(delta.token_ids) for delta in deltas) == 5
    assert len(joined(deltas)[1]) == 16
    biased, _ = joined(
        await collect(backend, prompt, max_tokens=3, temperature=0.0, logit_bias={7042: 100.0})
    )
    assert biased == [7042] * 3


async def test_parameters_of_the_completions_endpoint_alone(backend, prompt):
    deltas = await collect(
        backend, prompt, max_tokens=1, temperature=0.0, extra={"logprob_token_ids": [5, 6]}
    )
    assert {5, 6} <= deltas[0].top_logprobs[0].keys()
    deltas = await collect(backend, prompt, max_tokens=1, extra={"truncate_prompt_tokens": 4})
    assert deltas[0].prompt_token_ids == prompt[-4:]  # which the core finds to differ from what was sent


async def test_a_whole_reply_is_the_same_as_its_stream(backend, prompt):
    streamed, whole = [
        await collect(backend, prompt, max_tokens=5, temperature=0.0, stream=stream)
        for stream in (True, False)
    ]
    assert joined(whole)[0] == joined(streamed)[0]
    assert joined(whole)[1] == pytest.approx(joined(streamed)[1], abs=1e-4)
    assert whole[0].prompt_token_ids == prompt


async def test_weights_that_nobody_gave_a_version_have_none(backend, prompt):
    assert (await collect(backend, prompt, max_tokens=3, ignore_eos=True))[-1].weight_versions is None


async def test_cancelling_aborts_in_the_engine(backend, prompt):
    async with aclosing(backend.generate(asking(prompt, max_tokens=1500, ignore_eos=True))) as deltas:
        count = 0
        async for delta in deltas:
            count += len(delta.token_ids)
            if count == 3:
                break
        assert await running(backend.url) == 1
    for _ in range(50):
        if await running(backend.url) == 0:
            break
        await asyncio.sleep(0.1)
    assert await running(backend.url) == 0


async def running(url):
    """How many requests the engine is working at."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    (line,) = [line for line in lines if line.startswith("vllm:num_requests_running{")]
    return float(line.rsplit(" ", 1)[1])


@pytest.mark.parametrize("endpoint", ["generate", "completions"])
async def test_the_scripted_server_of_the_other_tests_speaks_the_same(live_vllm, prompt, endpoint):
    path = "/inference/v1/generate" if endpoint == "generate" else "/v1/completions"
    url = live_vllm.tokens_url if endpoint == "generate" else live_vllm.completions_url
    body = request_body(endpoint, "smol", asking(prompt, max_tokens=2, ignore_eos=True), 2048)
    async with aiohttp.ClientSession() as session, session.post(url + path, json=body) as response:
        real = [data async for together in EventStream(response.content).read() for data in together]
    scripted = ScriptedVLLM([Choice([(7, -0.5), (8, -0.5)], finish_reason="length")])
    made = getattr(scripted, f"{endpoint}_event")
    ours = [made(0, scripted.choices[0], place, place + 1, prompt) for place in range(2)]
    for theirs, mine in zip(map(json.loads, real[:2]), ours, strict=True):
        assert theirs.keys() - {"system_fingerprint"} == mine.keys()
        assert theirs["choices"][0].keys() == mine["choices"][0].keys()
        assert theirs["choices"][0]["logprobs"].keys() == mine["choices"][0]["logprobs"].keys()
    usage = json.loads(real[-1])
    assert usage["choices"] == []
    assert usage["usage"].keys() == {"prompt_tokens", "total_tokens", "completion_tokens"}


async def test_an_engine_of_our_own(vllm_python, model_folder, prompt, tokenizer):
    options = Options(
        launch=model_folder,
        launch_python=vllm_python,
        launch_args=[*ARGUMENTS, "--enable-scale-out"],
        launch_env=ENVIRONMENT,
    )
    backend = VLLMBackend(options, "mine")
    try:
        await backend.start()
        assert backend.tokenizer == model_folder
        assert (await backend.check())["model"] == "mine"
        ids, _ = joined(await collect(backend, prompt, temperature=0.0))
        assert "Paris" in tokenizer.decode(ids)
    finally:
        await backend.close()
    with pytest.raises(aiohttp.ClientConnectorError):
        await running(backend.url)
