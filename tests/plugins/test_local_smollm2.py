"""The embedded model itself. Its first use on a machine converts it (half a minute), into the user's cache folder."""

import asyncio

import pytest
from transformers import AutoTokenizer

from local_models import collect, ids_of, load, logprobs_of, truth
from rolltap_plugins.local import LocalBackend, LocalOptions, weights

assert weights.embedded_gguf() is not None, (
    f"the embedded weights are not installed: {weights.INSTALL_WEIGHTS}"
)


@pytest.fixture(scope="module")
def backend():
    backend = LocalBackend(LocalOptions())
    asyncio.run(backend.start())
    yield backend
    asyncio.run(backend.close())


@pytest.fixture(scope="module")
def tokenizer(backend):
    return AutoTokenizer.from_pretrained(backend.tokenizer)


def chat(tokenizer, *messages):
    roles = ("user", "assistant")
    turns = [{"role": roles[place % 2], "content": text} for place, text in enumerate(messages)]
    return tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)


async def test_it_knows_the_capital_of_france(backend, tokenizer):
    deltas = await collect(
        backend, chat(tokenizer, "What is the capital of France?"), temperature=0, max_tokens=20
    )
    assert tokenizer.decode(ids_of(deltas)) == "The capital of France is Paris.<|im_end|>"
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", None)


async def test_a_second_turn_reuses_the_first_and_logprobs_are_exact(backend, tokenizer):
    prompt = chat(tokenizer, "Name a colour.")
    first = ids_of(await collect(backend, prompt, temperature=0.7, seed=5, max_tokens=12))
    suffix = tokenizer.encode("<|im_end|>\n<|im_start|>user\nAnother one?<|im_end|>\n<|im_start|>assistant\n")
    second = prompt + first + suffix
    one, two = await asyncio.gather(
        collect(backend, second, temperature=0.7, seed=6, max_tokens=12),
        collect(backend, chat(tokenizer, "Hi"), seed=7, n=2, max_tokens=12),
    )
    assert one[0].cached_tokens == len(prompt) + len(first) - 1
    network = load(backend.tokenizer)
    assert logprobs_of(one) == pytest.approx(truth(network, second, ids_of(one)), abs=2e-3)
    for index in range(2):
        expected = truth(network, chat(tokenizer, "Hi"), ids_of(two, index))
        assert logprobs_of(two, index) == pytest.approx(expected, abs=2e-3)


async def test_check_says_what_is_served(backend):
    facts = await backend.check()
    assert facts["model"] == backend.tokenizer
    assert (facts["context_length"], facts["vocab_size"], facts["parameters"]) == (8192, 49152, 134_515_008)
    assert (facts["dtype"], facts["device"], facts["eos_token_ids"]) == ("float32", "cpu", [2])
