"""The local backend's tokens, on tiny random models: they are transformers' own, and so are their logprobs."""

import asyncio
import math
from contextlib import AsyncExitStack

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import local_models
from local_models import CONTEXT, EOS, OTHER_EOS, VOCAB, asking, collect, ids_of, logprobs_of, truth
from rolltap import BadRequest, UpstreamError
from rolltap_plugins.local import LocalBackend, LocalOptions

PROMPT = [5, 9, 33, 12, 7]


@pytest.fixture(scope="module", params=list(local_models.KINDS))
def any_folder(request, tmp_path_factory):
    return local_models.save(request.param, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return local_models.save("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def network(folder):
    return local_models.load(folder)


@pytest.fixture
async def backend(folder):
    async with local_models.serving(folder) as backend:
        yield backend


# ---- the tokens are the model's


async def test_greedy_is_transformers_own_generate_alone_and_together(any_folder):
    network = local_models.load(any_folder)
    prompts = [PROMPT, PROMPT[:1], [*range(4, 40)], [8, 8, 8]]
    async with local_models.serving(any_folder) as backend:
        together = await asyncio.gather(
            *(collect(backend, prompt, temperature=0, max_tokens=20, ignore_eos=True) for prompt in prompts)
        )
        alone = [
            await collect(backend, prompt, temperature=0, max_tokens=20, ignore_eos=True)
            for prompt in prompts
        ]
    for prompt, first, second in zip(prompts, together, alone, strict=True):
        ids = torch.tensor([prompt])
        expected = network.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20, eos_token_id=None
        )
        assert ids_of(first) == ids_of(second) == expected[0, len(prompt) :].tolist()


async def test_logprobs_are_raw_whatever_shapes_the_choice(any_folder):
    network = local_models.load(any_folder)
    shapes = [
        {"temperature": 0.5, "top_p": 0.8},
        {"temperature": 2.0, "n": 3, "seed": 1},
        {"frequency_penalty": 1.5, "presence_penalty": 1.0, "repetition_penalty": 1.3},
        {"logit_bias": {11: 3.0}, "min_p": 0.05, "top_k": 9},
    ]
    async with local_models.serving(any_folder) as backend:
        replies = await asyncio.gather(
            *(
                collect(backend, PROMPT[: place + 1], max_tokens=12, ignore_eos=True, **shape)
                for place, shape in enumerate(shapes)
            )
        )
    for place, (shape, deltas) in enumerate(zip(shapes, replies, strict=True)):
        for index in range(shape.get("n", 1)):
            output = ids_of(deltas, index)
            assert len(output) == 12
            expected = truth(network, PROMPT[: place + 1], output)
            assert logprobs_of(deltas, index) == pytest.approx(expected, abs=1e-4)
    assert {delta.logprobs_mode for delta in replies[0]} == {"raw_logprobs"}


async def test_one_delta_a_token_and_the_prompt_is_echoed_in_the_first(backend):
    deltas = await collect(backend, PROMPT, max_tokens=6, n=2, ignore_eos=True)
    assert [len(delta.token_ids) for delta in deltas] == [1] * 12
    assert [delta.prompt_token_ids for delta in deltas] == [PROMPT] + [None] * 11
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["length", "length"]


async def test_top_logprobs_are_the_most_likely(backend, network):
    (delta,) = await collect(backend, PROMPT, max_tokens=1, top_logprobs=5)
    assert delta.top_logprobs is not None
    with torch.inference_mode():
        expected = network(torch.tensor([PROMPT])).logits[0, -1].log_softmax(-1).topk(5)
    assert list(delta.top_logprobs[0]) == expected.indices.tolist()
    assert list(delta.top_logprobs[0].values()) == pytest.approx(expected.values.tolist(), abs=1e-5)
    assert (await collect(backend, PROMPT, max_tokens=1, top_logprobs=0))[0].top_logprobs is None


# ---- seeds and choices


async def test_a_seed_decides_and_choices_differ(backend):
    first = await collect(backend, PROMPT, seed=11, n=3, max_tokens=16, ignore_eos=True)
    again = await collect(backend, PROMPT, seed=11, n=3, max_tokens=16, ignore_eos=True)
    choices = [ids_of(first, index) for index in range(3)]
    assert choices == [ids_of(again, index) for index in range(3)]
    assert len({tuple(choice) for choice in choices}) == 3
    assert ids_of(await collect(backend, PROMPT, seed=13, max_tokens=16, ignore_eos=True)) == choices[2]
    negative = await collect(backend, PROMPT, seed=-(2**70), max_tokens=1)
    assert len(negative) == 1


async def test_without_a_seed_replies_differ(backend):
    replies = [ids_of(await collect(backend, PROMPT, max_tokens=20, ignore_eos=True)) for _ in range(3)]
    assert len({tuple(reply) for reply in replies}) > 1


async def test_choices_share_one_prefill(backend, monkeypatch):
    shapes = []
    forward = backend._model.forward
    monkeypatch.setattr(
        backend._model,
        "forward",
        lambda ids, *rest: shapes.append((len(ids), len(ids[0]))) or forward(ids, *rest),
    )
    await collect(backend, PROMPT, n=4, max_tokens=3, ignore_eos=True)
    assert shapes == [(1, len(PROMPT)), (4, 1), (4, 1)]


# ---- the end of a sequence


async def test_the_models_end_id_stops_and_is_among_the_ids(backend):
    (delta,) = await collect(backend, PROMPT, logit_bias={EOS: 100})
    assert (delta.token_ids, delta.finish_reason, delta.stop_reason) == ([EOS], "stop", None)
    (delta,) = await collect(backend, PROMPT, logit_bias={OTHER_EOS: 100})
    assert (delta.token_ids, delta.finish_reason, delta.stop_reason) == ([OTHER_EOS], "stop", OTHER_EOS)


async def test_stop_token_ids(backend):
    deltas = await collect(backend, PROMPT, logit_bias={40: 100}, stop_token_ids=[40], ignore_eos=True)
    assert [(delta.token_ids, delta.finish_reason, delta.stop_reason) for delta in deltas] == [
        ([40], "stop", 40)
    ]


async def test_ignore_eos_goes_on_to_max_tokens(backend):
    deltas = await collect(backend, PROMPT, logit_bias={EOS: 100}, ignore_eos=True, max_tokens=4)
    assert ids_of(deltas) == [EOS] * 4
    assert deltas[-1].finish_reason == "length"


async def test_min_tokens_holds_every_end_back(backend):
    bias = {EOS: 50, OTHER_EOS: 50, 40: 50}
    deltas = await collect(backend, PROMPT, logit_bias=bias, stop_token_ids=[40], min_tokens=5)
    assert len(deltas) == 6
    assert not {EOS, OTHER_EOS, 40} & set(ids_of(deltas)[:-1])
    assert deltas[-1].finish_reason == "stop"


@pytest.mark.parametrize("asked", [None, 10 * CONTEXT])
async def test_the_context_ends_what_max_tokens_does_not(backend, asked):
    deltas = await collect(backend, PROMPT, max_tokens=asked, ignore_eos=True)
    assert len(deltas) == CONTEXT - len(PROMPT)
    assert deltas[-1].finish_reason == "length"


# ---- what shapes the choice


@pytest.mark.parametrize("shape", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-7}])
async def test_narrowed_to_one_it_is_greedy(backend, shape):
    greedy = await collect(backend, PROMPT, temperature=0, max_tokens=12)
    narrowed = await collect(backend, PROMPT, max_tokens=12, **shape)
    assert ids_of(narrowed) == ids_of(greedy)


@pytest.mark.parametrize("shape", [{"presence_penalty": 1000.0}, {"frequency_penalty": 1000.0}])
async def test_count_penalties_forbid_what_was_said_and_not_the_prompt(backend, shape):
    output = ids_of(
        await collect(backend, PROMPT * 3, max_tokens=VOCAB, temperature=0, ignore_eos=True, **shape)
    )
    assert sorted(output) == [*range(VOCAB)]


async def test_the_repetition_penalty_sees_the_prompt_too(backend):
    prompt = [*range(20)]
    plain = ids_of(await collect(backend, prompt, max_tokens=1, logit_bias={5: 100}))
    biased_away = await collect(
        backend, prompt, max_tokens=1, temperature=0, logit_bias={5: 100, 50: 90}, repetition_penalty=100.0
    )
    assert (plain, ids_of(biased_away)) == ([5], [50])


async def test_temperature_flattens(backend):
    (delta,) = await collect(backend, PROMPT, n=1, max_tokens=1, temperature=0)
    hot = [
        ids_of(await collect(backend, PROMPT, n=16, max_tokens=1, temperature=50.0, seed=3), i)
        for i in range(16)
    ]
    assert sum(choice == delta.token_ids for choice in hot) < 8


async def test_what_is_left_open_comes_from_the_generation_config(tmp_path):
    folder = local_models.save("llama", tmp_path, do_sample=True, top_k=1, temperature=0.7)
    async with local_models.serving(folder) as backend:
        greedy = ids_of(await collect(backend, PROMPT, temperature=0, max_tokens=12))
        assert ids_of(await collect(backend, PROMPT, max_tokens=12)) == greedy
        assert (await backend.check())["sampling_defaults"] == {"top_k": 1, "temperature": 0.7}
        hot = {
            tuple(ids_of(await collect(backend, PROMPT, max_tokens=12, top_k=0, temperature=9.0)))
            for _ in "123"
        }
        assert hot != {tuple(greedy)}


# ---- bad input


@pytest.mark.parametrize(
    ("sampling", "named"),
    [
        ({"n": 0}, "n"),
        ({"n": 33}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"presence_penalty": math.inf}, "presence_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
    ],
)
async def test_a_wrong_parameter_is_named(backend, sampling, named):
    with pytest.raises(BadRequest) as caught:
        await collect(backend, PROMPT, **sampling)
    assert (caught.value.info.status, caught.value.info.param) == (400, named)
    assert named in caught.value.info.message


@pytest.mark.parametrize(("prompt", "says"), [([], "empty"), ([1, VOCAB], f"id {VOCAB}"), ([-1], "id -1")])
async def test_a_wrong_prompt_is_a_400(backend, prompt, says):
    with pytest.raises(BadRequest, match=says) as caught:
        await collect(backend, prompt)
    assert caught.value.info.status == 400


async def test_a_prompt_that_fills_the_context_is_an_overflow(backend):
    with pytest.raises(UpstreamError, match=f"{CONTEXT} tokens.*context {CONTEXT}") as caught:
        await collect(backend, [4] * CONTEXT)
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
    assert len(await collect(backend, [4] * (CONTEXT - 1))) == 1


def test_parameters_are_all_but_structured_output(backend):
    assert "response_format" not in backend.parameters
    assert {"stop", "seed", "logit_bias", "top_logprobs"} <= backend.parameters


# ---- anything at once


@pytest.fixture(scope="module")
def backends(folder):
    """By how many megabytes of prefixes they keep; six sequences at once, so that some requests wait."""
    backends = {
        size: LocalBackend(
            LocalOptions(
                model=folder, threads=1, context_length=CONTEXT, max_num_seqs=6, prefix_cache_mb=size
            )
        )
        for size in (0, 1)
    }
    for backend in backends.values():
        asyncio.run(backend.start())
    yield backends
    for backend in backends.values():
        asyncio.run(backend.close())


_requests = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30),
            "n": st.integers(1, 3),
            "max_tokens": st.integers(1, 25),
            "temperature": st.sampled_from([0.0, 0.7, 1.5]),
            "leave_after": st.none() | st.integers(0, 10),
        }
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=25, deadline=None)
@given(requests=_requests, prefix_cache_mb=st.sampled_from([0, 1]))
def test_any_mixture_of_requests_gets_the_models_logprobs(backends, network, requests, prefix_cache_mb):
    async def ask(backend, prompt, leave_after, **sampling):
        deltas = []
        async with AsyncExitStack() as stack:
            reply = backend.generate(asking(prompt, **sampling))
            stack.push_async_callback(reply.aclose)
            async for delta in reply:
                deltas.append(delta)
                if leave_after is not None and len(deltas) > leave_after:
                    break
        return prompt, deltas

    async def all_at_once(backend):
        replies = await asyncio.gather(*(ask(backend, **request) for request in requests))
        await local_models.idle(backend)
        return replies

    for prompt, deltas in asyncio.run(all_at_once(backends[prefix_cache_mb])):
        for index in {delta.index for delta in deltas}:
            expected = truth(network, prompt, ids_of(deltas, index))
            assert logprobs_of(deltas, index) == pytest.approx(expected, abs=1e-4)
