"""Tiny random models for the local backend's tests: each kind of layer, a few thousand parameters."""

import asyncio
from contextlib import asynccontextmanager

import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    GenerationConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
)

from rolltap import Sampling, TokenDelta, TokenRequest
from rolltap_plugins.local import LocalBackend, LocalOptions

VOCAB, CONTEXT, EOS, OTHER_EOS = 64, 96, 2, 3
_SMALL = {"vocab_size": VOCAB, "eos_token_id": EOS, "bos_token_id": 1, "pad_token_id": 0}
_LLAMA = _SMALL | {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.6,  # so that the next token depends on all that came before
}
KINDS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**_LLAMA),
    "gpt2": GPT2Config(**_SMALL, n_embd=16, n_layer=2, n_head=2, n_positions=CONTEXT, initializer_range=0.6),
    "mistral, sliding window": MistralConfig(**_LLAMA, sliding_window=8),
    "bloom, no positions": BloomConfig(**_SMALL, hidden_size=16, n_layer=2, n_head=2, initializer_range=0.6),
}


def save(kind, folder, *, seed=7, **generation):
    """Save a model of a kind, with a generation config of these entries."""
    torch.manual_seed(seed)
    network = AutoModelForCausalLM.from_config(KINDS[kind])
    network.generation_config = GenerationConfig(eos_token_id=[EOS, OTHER_EOS], pad_token_id=0, **generation)
    network.save_pretrained(folder)
    return str(folder)


def load(folder):
    """The same model, to compare with."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@asynccontextmanager
async def serving(folder, **options):
    """A backend that serves the folder."""
    backend = LocalBackend(LocalOptions(model=folder, threads=1, context_length=CONTEXT, **options))
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close()


def asking(prompt, *, stream=True, cache_salt="", **sampling) -> TokenRequest:
    """A request for what comes after a prompt."""
    return TokenRequest(
        prompt_ids=tuple(prompt), sampling=Sampling(**sampling), stream=stream, cache_salt=cache_salt
    )


async def collect(backend, prompt, **asked) -> list[TokenDelta]:
    """All deltas of a request."""
    return [delta async for delta in backend.generate(asking(prompt, **asked))]


def ids_of(deltas, index=0):
    """One choice's ids."""
    return [token for delta in deltas if delta.index == index for token in delta.token_ids]


def logprobs_of(deltas, index=0):
    """One choice's logprobs."""
    return [value for delta in deltas if delta.index == index for value in delta.logprobs]


def truth(network, prompt, output):
    """The raw logprobs of `output` after `prompt`, by one full forward pass without a cache."""
    with torch.inference_mode():
        logprobs = network(torch.tensor([prompt + output])).logits[0].float().log_softmax(-1)
    return [float(logprobs[len(prompt) + place - 1, token]) for place, token in enumerate(output)]


async def idle(backend):
    """Wait until no sequence runs. Fails after ten seconds."""
    async with asyncio.timeout(10):
        while (await backend.check())["running"]:  # noqa: ASYNC110  the worker thread has no event to wait for
            await asyncio.sleep(0.005)
