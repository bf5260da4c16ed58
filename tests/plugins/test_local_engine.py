"""The local backend's worker thread: many requests at once, leaving, failing, ending, and reused prefixes."""

import asyncio
import itertools
import threading
from contextlib import aclosing

import pytest
import torch

import local_models
from local_models import asking, collect, idle, ids_of, logprobs_of, truth
from rolltap import Sampling, UpstreamError
from rolltap_plugins.local import LocalBackend, LocalOptions, prefill, requests
from rolltap_plugins.local.sampling import settle

PROMPT = [5, 9, 33, 12, 7]
LONG = {"max_tokens": 80, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return local_models.save("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
async def backend(folder):
    async with local_models.serving(folder) as backend:
        yield backend


def spy(monkeypatch, backend, before):
    """Call `before(ids)` ahead of each model step, in the worker thread."""
    forward = backend._model.forward

    def watched(ids, *rest):
        before(ids)
        return forward(ids, *rest)

    monkeypatch.setattr(backend._model, "forward", watched)


# ---- at once


async def test_the_loop_goes_on_while_the_model_computes(backend, monkeypatch):
    loop, computing, goes_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    spy(monkeypatch, backend, lambda ids: (loop.call_soon_threadsafe(computing.set), goes_on.wait(10)))
    task = asyncio.create_task(collect(backend, PROMPT, max_tokens=1))
    await asyncio.wait_for(computing.wait(), 5)
    assert not task.done()
    goes_on.set()
    assert len(await task) == 1


async def test_requests_are_decoded_together_and_reach_their_clients_by_turns(backend, monkeypatch):
    widths, order = [], []
    spy(monkeypatch, backend, lambda ids: widths.append(len(ids)))

    async def ask(name, prompt):
        async for delta in backend.generate(asking(prompt, **LONG)):
            order.extend(name for _ in delta.token_ids)

    await asyncio.gather(ask("a", PROMPT), ask("b", PROMPT[:2]))
    assert max(widths) == 2
    changes = sum(first != second for first, second in itertools.pairwise(order))
    assert changes > 40


async def test_a_long_prompt_is_run_in_chunks_between_others_tokens(folder, monkeypatch):
    monkeypatch.setattr(prefill, "CHUNK", 4)
    async with local_models.serving(folder) as backend:
        steps = []
        spy(monkeypatch, backend, lambda ids: steps.append(len(ids[0])))
        async with aclosing(backend.generate(asking(PROMPT[:1], **LONG))) as running:
            await anext(running)
            long = await collect(backend, [*range(4, 34)], max_tokens=5, ignore_eos=True)
    first = steps.index(4)
    assert steps[first : first + 16] == [4, 1] * 7 + [2, 1]
    expected = truth(local_models.load(folder), [*range(4, 34)], ids_of(long))
    assert logprobs_of(long) == pytest.approx(expected, abs=1e-4)


async def test_max_num_seqs_makes_others_wait(folder, monkeypatch):
    async with local_models.serving(folder, max_num_seqs=3) as backend:
        running = []
        spy(monkeypatch, backend, lambda ids: running.append(backend._engine.running))
        replies = await asyncio.gather(
            *(collect(backend, PROMPT, n=2, max_tokens=5, ignore_eos=True) for _ in range(4))
        )
    assert [len({delta.index for delta in reply}) for reply in replies] == [2] * 4
    assert max(running) == 2


async def test_alone_each_reply_is_the_same_bit_by_bit_under_any_load(folder):
    async with local_models.serving(folder, max_num_seqs=1, prefix_cache_mb=0) as backend:
        alone = await collect(backend, PROMPT, seed=4, **LONG)
        loaded, *_ = await asyncio.gather(
            collect(backend, PROMPT, seed=4, **LONG),
            *(collect(backend, PROMPT[place:], **LONG) for place in range(4)),
        )
    assert loaded == alone


# ---- leaving


@pytest.mark.parametrize("others", [0, 2])
async def test_closing_the_generator_frees_its_sequences(backend, others):
    tasks = [asyncio.create_task(collect(backend, PROMPT[:2], **LONG)) for _ in range(others)]
    reply = backend.generate(asking(PROMPT, n=3, **LONG))
    await anext(reply)
    await reply.aclose()
    await asyncio.gather(*tasks)
    await idle(backend)
    assert [len(task.result()) for task in tasks] == [80] * others


async def test_cancelling_the_reader_stops_the_work(backend, monkeypatch):
    steps = []
    started = asyncio.Event()
    loop = asyncio.get_running_loop()
    slow = threading.Event()
    spy(
        monkeypatch,
        backend,
        lambda ids: (steps.append(ids), loop.call_soon_threadsafe(started.set), slow.wait(0.01)),
    )
    task = asyncio.create_task(collect(backend, PROMPT, **LONG))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await idle(backend)
    assert len(steps) < 20


async def test_a_request_that_waits_can_be_left(folder):
    async with local_models.serving(folder, max_num_seqs=1) as backend:
        async with aclosing(backend.generate(asking(PROMPT, **LONG))) as running:
            await anext(running)
            waiting = asyncio.create_task(collect(backend, PROMPT, max_tokens=1))
            await asyncio.sleep(0)
            waiting.cancel()
            assert len([delta async for delta in running]) == 79
        await idle(backend)


def test_a_loop_that_was_closed_does_not_harm_the_engine(folder):
    backend = LocalBackend(LocalOptions(model=folder, threads=1))
    asyncio.run(backend.start())

    async def leave():
        backend._engine.submit(requests.Request(PROMPT, endless))

    endless = settle(
        Sampling(ignore_eos=True), room=10**6, vocab_size=local_models.VOCAB, eos_ids=(), defaults={}
    )
    asyncio.run(leave())
    deltas = asyncio.run(collect(backend, PROMPT, max_tokens=3, ignore_eos=True))
    asyncio.run(idle(backend))
    asyncio.run(backend.close())
    assert len(deltas) == 3


# ---- failing


async def test_a_fault_of_the_model_fails_what_ran_and_nothing_else(backend, monkeypatch):
    def fault(ids):
        if len(ids) > 1:
            raise RuntimeError("out of luck")

    spy(monkeypatch, backend, fault)
    with pytest.raises(UpstreamError, match="local model failed: RuntimeError: out of luck") as caught:
        await collect(backend, PROMPT, n=2, **LONG)
    assert (caught.value.status, caught.value.code) == (500, "engine_error")
    await idle(backend)
    assert len(await collect(backend, PROMPT, **LONG)) == 80


async def test_a_fault_in_a_prefill_leaves_the_others_running(backend, monkeypatch):
    def fault(ids):
        if len(ids[0]) == 3:
            raise RuntimeError("out of luck")

    spy(monkeypatch, backend, fault)
    async with aclosing(backend.generate(asking(PROMPT, **LONG))) as good:
        await anext(good)
        with pytest.raises(UpstreamError, match="out of luck"):
            await collect(backend, [7, 7, 7], **LONG)
        assert len([delta async for delta in good]) == 79


async def test_a_fault_in_one_sequence_leaves_those_of_its_batch_running(backend, monkeypatch):
    advance = requests.Sequence.advance

    def fault(self, *rows):
        if self.request.prompt[0] == 7 and len(self.ids) > 20:
            raise ValueError("out of luck")
        return advance(self, *rows)

    monkeypatch.setattr(requests.Sequence, "advance", fault)
    good, bad = await asyncio.gather(
        collect(backend, PROMPT, **LONG), collect(backend, [7, 7, 7], **LONG), return_exceptions=True
    )
    assert len(good) == 80
    assert isinstance(bad, UpstreamError)
    await idle(backend)


async def test_output_that_is_not_a_number_is_an_error_and_no_token(backend):
    with torch.no_grad():
        backend._model.network.lm_head.weight.fill_(torch.nan)
    with pytest.raises(UpstreamError, match="not a number"):
        await collect(backend, PROMPT, temperature=0)


# ---- ending


async def test_closing_fails_what_runs_and_what_waits(folder):
    async with local_models.serving(folder, max_num_seqs=1) as backend:
        tasks = [
            asyncio.create_task(collect(backend, PROMPT, max_tokens=90, ignore_eos=True)) for _ in range(3)
        ]
        await asyncio.sleep(0)
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, UpstreamError)
        assert (result.status, result.code) == (503, "engine_stopped")
    with pytest.raises(UpstreamError, match="not running"):
        await collect(backend, PROMPT)
    assert not [thread for thread in threading.enumerate() if thread.name == "rolltap-local"]
    await backend.close()


async def test_before_the_start_it_says_so(folder):
    with pytest.raises(UpstreamError, match="not running"):
        await collect(LocalBackend(LocalOptions(model=folder)), PROMPT)


# ---- reused prefixes


async def test_a_next_turn_prefills_only_what_is_new(backend, folder, monkeypatch):
    network = local_models.load(folder)
    first = ids_of(await collect(backend, PROMPT, max_tokens=10, ignore_eos=True))
    await idle(backend)
    steps = []
    spy(monkeypatch, backend, steps.append)
    second = [*PROMPT, *first, 20, 21, 22]
    deltas = await collect(backend, second, max_tokens=6, n=2, ignore_eos=True)
    assert deltas[0].cached_tokens == len(PROMPT) + 9  # the last id was given out and not run
    assert steps[0] == [[first[-1], 20, 21, 22]]
    for index in range(2):
        assert logprobs_of(deltas, index) == pytest.approx(
            truth(network, second, ids_of(deltas, index)), abs=1e-4
        )


async def test_the_same_prompt_again_and_a_branch_share_what_is_common(backend, folder):
    network = local_models.load(folder)
    for prompt, cached in (
        ([*range(4, 24)], 0),
        ([*range(4, 24)], 19),
        ([*range(4, 14), 50, 51], 10),
        ([60], 0),
    ):
        deltas = await collect(backend, prompt, max_tokens=5, ignore_eos=True)
        assert deltas[0].cached_tokens == cached
        assert logprobs_of(deltas) == pytest.approx(truth(network, prompt, ids_of(deltas)), abs=1e-4)


async def test_sequences_that_were_left_are_reused_too(backend):
    async with aclosing(backend.generate(asking(PROMPT, **LONG))) as reply:
        ids = [(await anext(reply)).token_ids[0] for _ in range(10)]
    await idle(backend)
    deltas = await collect(backend, PROMPT + ids, max_tokens=1)
    assert deltas[0].cached_tokens == len(PROMPT) + 9


async def test_no_memory_no_reuse(folder):
    async with local_models.serving(folder, prefix_cache_mb=0) as backend:
        for _ in range(2):
            assert (await collect(backend, PROMPT, max_tokens=2))[0].cached_tokens == 0


async def test_what_is_kept_is_bounded_and_the_oldest_goes_first(folder, monkeypatch):
    async with local_models.serving(folder) as backend:
        prefixes = backend._engine._prefixes
        one = 2 * 2 * 8 * 4  # keys and values, layers, width of the one head, bytes a float
        monkeypatch.setattr(prefixes, "_limit", 60 * one)
        for start in (4, 5, 6, 4, 7):
            await collect(backend, [start] * 20, max_tokens=1)
            await idle(backend)
        assert [ids[0] for _, ids, _ in prefixes._kept] == [6, 4, 7]


async def test_a_sliding_window_keeps_nothing_to_share(tmp_path):
    folder = local_models.save("mistral, sliding window", tmp_path)
    async with local_models.serving(folder) as backend:
        for _ in range(2):
            assert (await collect(backend, PROMPT, max_tokens=2))[0].cached_tokens == 0
