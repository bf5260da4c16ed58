"""Prompts that the local backend runs together: which ones, and that nobody can tell by the logprobs."""

import asyncio

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import local_models
from local_models import CONTEXT, VOCAB, collect, idle, ids_of, logprobs_of, truth
from rolltap_plugins.local.batch import stack
from rolltap_plugins.local.model import Model

ONE = {"max_tokens": 1, "ignore_eos": True}


@pytest.fixture(scope="module", params=list(local_models.KINDS))
def any_folder(request, tmp_path_factory):
    return local_models.save(request.param, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return local_models.save("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
async def backend(folder):
    async with local_models.serving(folder) as backend:
        yield backend


async def all_at_once(backend, monkeypatch, prompts, **asked):
    """The replies to prompts that are there before the first step, and the shapes of the steps."""
    shapes = []
    forward = backend._model.forward

    def watched(ids, *rest):
        shapes.append([len(row) for row in ids])
        return forward(ids, *rest)

    monkeypatch.setattr(backend._model, "forward", watched)
    await backend.pause("keep")
    tasks = [asyncio.create_task(collect(backend, prompt, **(ONE | asked))) for prompt in prompts]
    await asyncio.sleep(0)
    await backend.resume()
    return await asyncio.gather(*tasks), shapes


def different(*lengths):
    """Prompts of these lengths that begin differently."""
    return [[4 + place] + [9] * (length - 1) for place, length in enumerate(lengths)]


async def test_short_prompts_are_run_in_one_step(backend, folder, monkeypatch):
    prompts = different(5, 7, 5, 9)
    replies, shapes = await all_at_once(backend, monkeypatch, prompts)
    assert shapes == [[5, 7, 5, 9]]
    network = local_models.load(folder)
    for prompt, deltas in zip(prompts, replies, strict=True):
        assert logprobs_of(deltas) == pytest.approx(truth(network, prompt, ids_of(deltas)), abs=1e-5)


async def test_a_step_has_128_ids_and_little_padding(backend, monkeypatch):
    _, shapes = await all_at_once(backend, monkeypatch, different(*[20] * 7, 60, 3, 3))
    assert shapes == [[20] * 6, [20, 3, 3], [60]]


async def test_one_that_begins_like_another_waits_for_what_that_leaves(backend, monkeypatch):
    first, other = different(30, 30)
    replies, shapes = await all_at_once(backend, monkeypatch, [first, first, [*first[:-1], 7], other])
    assert shapes == [[30, 30], [1, 1]]
    assert [deltas[0].cached_tokens for deltas in replies] == [0, 29, 29, 0]


async def test_where_nothing_is_kept_nobody_waits_for_it(folder, monkeypatch):
    async with local_models.serving(folder, prefix_cache_mb=0) as backend:
        _, shapes = await all_at_once(backend, monkeypatch, [[5] * 30] * 3)
    assert shapes == [[30] * 3]


async def test_a_common_salt_is_needed_to_share(backend):
    prompt = [5] * 30
    for salt, cached in (("a", 0), ("b", 0), ("a", 29), ("", 0), ("b", 29)):
        deltas = await collect(backend, prompt, cache_salt=salt, **ONE)
        assert deltas[0].cached_tokens == cached


async def test_layers_that_cannot_be_padded_are_run_a_row_at_a_time(tmp_path, monkeypatch):
    async with local_models.serving(local_models.save("mistral, sliding window", tmp_path)) as backend:
        _, shapes = await all_at_once(backend, monkeypatch, different(5, 7))
    assert [len(shape) for shape in shapes] == [1, 1]


async def test_the_last_place_of_the_context_can_be_padded(tmp_path, monkeypatch):
    folder = local_models.save("gpt2", tmp_path)  # a table of positions, which knows none beyond its last
    network = local_models.load(folder)
    long, short = [*range(4, VOCAB), *[7] * (CONTEXT - VOCAB + 3)], [5, 6, 7, 8]
    async with local_models.serving(folder) as backend:
        await collect(backend, long[:-1], **ONE)
        await idle(backend)
        replies, shapes = await all_at_once(backend, monkeypatch, [long, short])
        assert shapes == [[1, 4]]
    for prompt, deltas in zip([long, short], replies, strict=True):
        assert logprobs_of(deltas) == pytest.approx(truth(network, prompt, ids_of(deltas)), abs=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9)), min_size=1, max_size=5),
    kind=st.sampled_from(["llama", "gpt2"]),
)
def test_rows_of_any_lengths_behind_prefixes_of_any_lengths(models, rows, kind):
    """Each row's logits, and what its cache then gives, are those of the row alone."""
    model = models[kind]
    torch.manual_seed(3)
    with torch.inference_mode():
        prompts = [torch.randint(0, VOCAB, (known + new,)).tolist() for known, new in rows]
        caches = []
        for prompt, (known, _) in zip(prompts, rows, strict=True):
            caches.append(model.new_cache() if known else None)
            if known:
                model.forward([prompt[:known]], caches[-1])
        cache, padding = stack(model, caches)
        new = [prompt[known:] for prompt, (known, _) in zip(prompts, rows, strict=True)]
        together = model.forward(new, cache, padding)
        for place, prompt in enumerate(prompts):
            alone = model.forward([prompt], model.new_cache())[0]
            torch.testing.assert_close(together[place], alone, atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return {
        kind: Model(local_models.load(local_models.save(kind, tmp_path_factory.mktemp("model"))))
        for kind in ("llama", "gpt2")
    }


# ---- without a reader


async def test_where_nobody_reads_a_choice_comes_in_few_pieces(backend, folder):
    streamed = await collect(backend, [5, 6], seed=1, n=2, max_tokens=70, ignore_eos=True, top_logprobs=2)
    await idle(backend)
    whole = await collect(
        backend, [5, 6], seed=1, n=2, max_tokens=70, ignore_eos=True, top_logprobs=2, stream=False
    )
    assert [len(delta.token_ids) for delta in whole if delta.index == 0] == [32, 32, 6]
    assert [delta.prompt_token_ids for delta in whole] == [[5, 6], *[None] * 5]
    for index in range(2):
        assert ids_of(whole, index) == ids_of(streamed, index)
        assert logprobs_of(whole, index) == pytest.approx(logprobs_of(streamed, index), abs=1e-5)
        tops = [top for delta in whole if delta.index == index for top in delta.top_logprobs]
        assert len(tops) == 70
    assert [delta.finish_reason for delta in whole if delta.finish_reason] == ["length"] * 2


async def test_a_short_reply_that_nobody_reads_is_one_delta(backend):
    (delta,) = await collect(backend, [5, 6], max_tokens=4, ignore_eos=True, stream=False)
    assert (len(delta.token_ids), delta.finish_reason) == (4, "length")
