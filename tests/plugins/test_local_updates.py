"""Pauses and new weights of the local backend, in the middle of replies: nothing ends that must not, each token's
version is known, and no keys and values of older weights serve a later prompt."""

import asyncio
import itertools
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import local_models
from local_models import asking, collect, idle, ids_of, logprobs_of, truth
from rolltap import BadRequest, UpstreamError
from rolltap_plugins.local import LocalBackend, LocalOptions

PROMPT = [5, 9, 33, 12, 7]
LONG = {"max_tokens": 60, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return local_models.save("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Folders of other weights of the same kind."""
    return [
        local_models.save("llama", tmp_path_factory.mktemp("other"), seed=seed) for seed in range(100, 104)
    ]


@pytest.fixture
async def backend(folder):
    async with local_models.serving(folder) as backend:
        yield backend


@pytest.fixture
def held(backend, monkeypatch):
    """The backend, whose sixth step waits until it is ordered to pause or to swap: whatever runs has 5 or 6 tokens then."""
    hold(backend, monkeypatch, 6)
    return backend


def hold(backend, monkeypatch, step, orders=1):
    """Have the worker wait, in the step of this number, until so many orders have been given from now on."""
    forward, order = backend._model.forward, backend._engine._order
    steps, given, ordered = itertools.count(1), itertools.count(1), threading.Event()

    def watched(ids, *rest):
        if next(steps) == step:
            assert ordered.wait(10)
        return forward(ids, *rest)

    def noted(what):
        future = order(what)
        if next(given) == orders:
            ordered.set()
        return future

    monkeypatch.setattr(backend._model, "forward", watched)
    monkeypatch.setattr(backend._engine, "_order", noted)


class Reader:
    """Reads a reply in the background; `at(n)` waits until it has n deltas."""

    def __init__(self, backend, prompt, **asked):
        self.deltas = []
        self._came = asyncio.Condition()
        self.task = asyncio.create_task(self._read(backend.generate(asking(prompt, **asked))))

    async def _read(self, reply):
        async for delta in reply:
            async with self._came:
                self.deltas.append(delta)
                self._came.notify_all()
        return self.deltas

    async def at(self, count):
        async with asyncio.timeout(10), self._came:
            await self._came.wait_for(lambda: len(self.deltas) >= count)
        return self


def versions(deltas, index=0):
    return [delta for delta in deltas if delta.index == index][-1].weight_versions


# ---- pauses


async def test_abort_ends_what_runs_with_what_it_has(backend, folder, monkeypatch):
    hold(backend, monkeypatch, 6, orders=3)
    await backend.pause("keep")
    streamed, unread = Reader(backend, PROMPT, **LONG), Reader(backend, [8, 8], n=2, stream=False, **LONG)
    await asyncio.sleep(0)
    await backend.resume()
    await streamed.at(5)
    await backend.pause("abort")
    assert await backend.is_paused()
    network = local_models.load(folder)
    for reader, prompt, choices in ((streamed, PROMPT, 1), (unread, [8, 8], 2)):
        deltas = await asyncio.wait_for(reader.task, 5)
        assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["abort"] * choices
        for index in range(choices):
            output = ids_of(deltas, index)
            assert len(output) in {5, 6}  # the order may come before the sixth step
            assert versions(deltas, index) == [[0, len(output), 0]]
            assert logprobs_of(deltas, index) == pytest.approx(truth(network, prompt, output), abs=1e-4)
    assert len(unread.deltas) == 2
    assert (await backend.check())["running"] == 0


async def test_what_has_no_token_yet_waits_in_an_abort_and_goes_on_after_it(folder, monkeypatch):
    async with local_models.serving(folder, max_num_seqs=1) as backend:
        hold(backend, monkeypatch, 6)
        running = await Reader(backend, PROMPT, **LONG).at(1)
        waiting = Reader(backend, [8, 8], max_tokens=3, ignore_eos=True)
        await backend.pause("abort")
        assert (await running.task)[-1].finish_reason == "abort"
        await asyncio.sleep(0.05)
        assert waiting.deltas == []
        await backend.resume()
        assert len(await waiting.task) == 3


async def test_an_aborted_one_goes_on_from_its_prefix(held):
    first = await Reader(held, PROMPT, **LONG).at(5)
    await held.pause("abort")
    await held.resume()
    so_far = PROMPT + ids_of(await first.task)
    rest = await collect(held, so_far, max_tokens=2, ignore_eos=True)
    assert rest[0].cached_tokens == len(so_far) - 1


async def test_keep_freezes_and_resume_goes_on(held, folder):
    reader = await Reader(held, PROMPT, temperature=0, **LONG).at(5)
    await held.pause("keep")
    frozen = len(reader.deltas)
    later = asyncio.create_task(collect(held, PROMPT, max_tokens=1))
    await asyncio.sleep(0.1)
    assert len(reader.deltas) - frozen <= 1  # one may have been on its way
    assert not later.done()
    await held.resume()
    assert not await held.is_paused()
    assert len(await reader.task) == 60
    assert len(await later) == 1
    assert ids_of(reader.deltas) == ids_of(await collect(held, PROMPT, temperature=0, **LONG))


async def test_wait_lets_what_runs_end_and_what_is_new_wait(held):
    reader = await Reader(held, PROMPT, **LONG).at(5)
    pausing = asyncio.create_task(held.pause("wait"))
    await asyncio.sleep(0)  # the order is there
    later = asyncio.create_task(collect(held, PROMPT, max_tokens=1))
    await pausing
    assert len(await reader.task) == 60
    await asyncio.sleep(0.05)
    assert not later.done()
    await held.resume()
    assert len(await later) == 1


@pytest.mark.parametrize("mode", ["abort", "keep", "wait"])
async def test_with_nothing_to_do_each_mode_is_paused_at_once_and_twice(backend, mode):
    for _ in range(2):
        await asyncio.wait_for(backend.pause(mode), 5)
    await backend.resume()
    await backend.resume()
    assert len(await collect(backend, PROMPT, max_tokens=2, ignore_eos=True)) == 2


async def test_a_resume_frees_a_pause_that_still_waits(held):
    reader = await Reader(held, PROMPT, **LONG).at(5)
    await held.pause("keep")
    waiting = asyncio.create_task(held.pause("wait"))
    await asyncio.sleep(0)
    await held.pause("keep")  # now what it waits for stands still
    await held.resume()
    await asyncio.wait_for(waiting, 5)
    assert len(await reader.task) == 60


async def test_one_that_is_left_in_a_pause_is_let_go_of_at_once(held):
    reader = await Reader(held, PROMPT, n=3, **LONG).at(15)
    await held.pause("keep")
    reader.task.cancel()
    await idle(held)


async def test_closing_ends_a_pause_and_all_that_wait_for_it(folder, monkeypatch):
    async with local_models.serving(folder) as backend:
        hold(backend, monkeypatch, 3)
        reader = await Reader(backend, PROMPT, **LONG).at(2)
        await backend.pause("keep")
        later = asyncio.create_task(collect(backend, PROMPT))
        await asyncio.sleep(0)
    for task in (reader.task, later):
        with pytest.raises(UpstreamError, match="stopped"):
            await task
    with pytest.raises(UpstreamError, match="not running"):
        await backend.pause("wait")


# ---- new weights


async def test_new_weights_are_served_and_their_version_is_told(backend, others):
    assert await backend.weight_version() == 0
    for version, other in ((1, others[0]), ("step-2", others[1])):
        await backend.set_weights(version, other)
        assert await backend.weight_version() == version
        deltas = await collect(backend, PROMPT, max_tokens=10, ignore_eos=True)
        expected = truth(local_models.load(other), PROMPT, ids_of(deltas))
        assert logprobs_of(deltas) == pytest.approx(expected, abs=1e-4)
        assert deltas[0].cached_tokens == 0
        assert versions(deltas) == [[0, 10, version]]


async def test_a_call_that_spans_a_swap_goes_on_and_has_two_spans(held, folder, others):
    reader = await Reader(held, PROMPT, **LONG).at(5)
    await held.set_weights(1, others[0])
    deltas = await reader.task
    assert len(ids_of(deltas)) == 60
    (start, cut, old), (again, end, new) = versions(deltas)
    assert (start, old, again, end, new) == (0, 0, cut, 60, 1)
    assert cut in {5, 6}
    before = truth(local_models.load(folder), PROMPT, ids_of(deltas)[:cut])
    assert logprobs_of(deltas)[:cut] == pytest.approx(before, abs=1e-4)


async def test_each_delta_has_the_versions_of_all_tokens_so_far(held, others):
    reader = await Reader(held, PROMPT, **LONG).at(5)
    await held.set_weights(1, others[0])
    count = 0
    for delta in await reader.task:
        count += len(delta.token_ids)
        assert [start for start, _, _ in delta.weight_versions][:1] == [0]
        assert delta.weight_versions[-1][1] == count


async def test_what_was_written_across_a_swap_serves_no_later_prompt(held, others):
    reader = await Reader(held, PROMPT, **LONG).at(5)
    await held.set_weights(1, others[0])
    whole = PROMPT + ids_of(await reader.task)
    await idle(held)
    deltas = await collect(held, whole, max_tokens=5, ignore_eos=True)
    assert deltas[0].cached_tokens == 0
    expected = truth(local_models.load(others[0]), whole, ids_of(deltas))
    assert logprobs_of(deltas) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("path", [True, False])
async def test_every_prefix_of_older_weights_is_dropped_also_under_the_same_name(backend, others, path):
    for _ in range(2):
        await collect(backend, PROMPT, max_tokens=2)
        await idle(backend)
        await backend.set_weights(0, others[0] if path else None)
        assert (await collect(backend, PROMPT, max_tokens=2))[0].cached_tokens == 0


async def test_a_prompt_that_is_not_through_begins_anew(folder, others, monkeypatch):
    """Its reply is of the new weights alone, whatever of the prompt the old ones had read."""
    monkeypatch.setattr("rolltap_plugins.local.prefill.CHUNK", 4)
    async with local_models.serving(folder) as backend:
        prompt = [*range(4, 60)]
        hold(backend, monkeypatch, 5)
        reply = asyncio.create_task(collect(backend, prompt, max_tokens=5, ignore_eos=True))
        await asyncio.sleep(0)
        await backend.set_weights(1, others[0])
        deltas = await reply
    assert versions(deltas) == [[0, 5, 1]]
    expected = truth(local_models.load(others[0]), prompt, ids_of(deltas))
    assert logprobs_of(deltas) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("mode", ["abort", "keep", "wait"])
async def test_in_a_pause(backend, others, mode):
    await backend.pause(mode)
    await backend.set_weights(1, others[0])
    later = asyncio.create_task(collect(backend, PROMPT, max_tokens=5, ignore_eos=True))
    await backend.resume()
    assert versions(await later) == [[0, 5, 1]]


# ---- what can be loaded


async def loads(backend, folder, path):
    """Whether the backend then gives the logprobs of `folder`'s weights."""
    await backend.set_weights("new", str(path))
    deltas = await collect(backend, PROMPT, max_tokens=5, ignore_eos=True)
    expected = truth(local_models.load(folder), PROMPT, ids_of(deltas))
    return logprobs_of(deltas) == pytest.approx(expected, abs=1e-4)


async def test_a_file_a_folder_and_a_folder_of_shards(backend, others, tmp_path):
    assert await loads(backend, others[0], f"{others[0]}/model.safetensors")
    assert await loads(backend, others[1], others[1])
    local_models.load(others[2]).save_pretrained(tmp_path, max_shard_size="2KB")
    assert len([*tmp_path.glob("*.safetensors")]) > 1
    assert await loads(backend, others[2], tmp_path)


async def test_the_file_is_not_needed_any_more(backend, others, tmp_path):
    path = tmp_path / "new.safetensors"
    save_file(load_file(f"{others[0]}/model.safetensors"), path)
    await backend.set_weights(1, str(path))
    path.write_bytes(b"\0" * path.stat().st_size)
    deltas = await collect(backend, PROMPT, max_tokens=5, ignore_eos=True)
    expected = truth(local_models.load(others[0]), PROMPT, ids_of(deltas))
    assert logprobs_of(deltas) == pytest.approx(expected, abs=1e-4)


async def test_other_precision_is_converted(backend, others, tmp_path):
    local_models.load(others[0]).to(torch.bfloat16).save_pretrained(tmp_path)
    await backend.set_weights(1, str(tmp_path))
    assert {p.dtype for p in backend._model.network.parameters()} == {torch.float32}
    deltas = await collect(backend, PROMPT, max_tokens=5, ignore_eos=True)
    assert logprobs_of(deltas) == pytest.approx(
        truth(local_models.load(tmp_path), PROMPT, ids_of(deltas)), abs=1e-4
    )


@pytest.mark.parametrize("under", [["lm_head.weight"], ["transformer.wte.weight"], None])
async def test_tied_embeddings_under_either_name_or_both(tmp_path, under):
    served = local_models.save("gpt2", tmp_path / "served")
    new = local_models.save("gpt2", tmp_path / "new", seed=100)
    tensors = load_file(f"{new}/model.safetensors")
    embedding = tensors.pop("transformer.wte.weight", tensors.pop("lm_head.weight", None))
    for name in under or ["lm_head.weight", "transformer.wte.weight"]:
        tensors[name] = embedding.clone()
    save_file(tensors, tmp_path / "tied.safetensors")
    async with local_models.serving(served) as backend:
        assert await loads(backend, new, tmp_path / "tied.safetensors")
        network = backend._model.network
        assert network.lm_head.weight is network.transformer.wte.weight


def _without(tensors):
    del tensors["model.norm.weight"]


def _with_a_stranger(tensors):
    tensors["model.adapter.weight"] = torch.ones(2)


def _of_another_shape(tensors):
    tensors["model.norm.weight"] = torch.ones(8)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_without, r"lacks the tensor model\.norm\.weight"),
        (_with_a_stranger, r"has the tensor model\.adapter\.weight, which the served model has not"),
        (_of_another_shape, r"model\.norm\.weight of shape \(8,\), and in the served model \(16,\)"),
    ],
)
async def test_weights_that_do_not_fit_change_nothing(backend, folder, others, tmp_path, damage, says):
    tensors = load_file(f"{others[0]}/model.safetensors")
    damage(tensors)
    save_file(tensors, tmp_path / "bad.safetensors")
    with pytest.raises(BadRequest, match=says) as caught:
        await backend.set_weights(1, str(tmp_path / "bad.safetensors"))
    assert caught.value.info.param == "path"
    await unchanged(backend, folder)


async def test_tied_embeddings_that_differ_are_refused(tmp_path):
    served = local_models.save("gpt2", tmp_path / "served")
    tensors = load_file(f"{served}/model.safetensors")
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"] + 1
    save_file(tensors, tmp_path / "untied.safetensors")
    async with local_models.serving(served) as backend:
        with pytest.raises(BadRequest, match="one tensor in the served model"):
            await backend.set_weights(1, str(tmp_path / "untied.safetensors"))
        await unchanged(backend, served)


@pytest.mark.parametrize(
    "what", ["nothing", "an empty folder", "no safetensors", "an index without its files"]
)
async def test_what_cannot_be_read_is_named(backend, folder, tmp_path, what):
    path = tmp_path / "weights"
    match what:
        case "an empty folder":
            path.mkdir()
        case "no safetensors":
            path.write_bytes(b"PK weights by pickle")
        case "an index without its files":
            path.mkdir()
            (path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    with pytest.raises(BadRequest, match=str(path)):
        await backend.set_weights(1, str(path))
    await unchanged(backend, folder)


async def unchanged(backend, folder):
    assert await backend.weight_version() == 0
    deltas = await collect(backend, PROMPT, max_tokens=5, ignore_eos=True)
    expected = truth(local_models.load(folder), PROMPT, ids_of(deltas))
    assert logprobs_of(deltas) == pytest.approx(expected, abs=1e-4)


# ---- anything at any time


@pytest.fixture(scope="module")
def shared(folder):
    backend = LocalBackend(
        LocalOptions(model=folder, threads=1, context_length=local_models.CONTEXT, max_num_seqs=6)
    )
    asyncio.run(backend.start())
    yield backend
    asyncio.run(backend.close())


@pytest.fixture(scope="module")
def networks(folder, others):
    return [local_models.load(each) for each in (folder, *others)]


_calls = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.lists(st.integers(0, 5), min_size=1, max_size=20),  # few ids: many common prefixes
            "n": st.integers(1, 2),
            "max_tokens": st.integers(1, 20),
            "stream": st.booleans(),
        }
    ),
    min_size=1,
    max_size=6,
)
_events = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from(["swap", "keep", "wait", "abort", "resume"])), max_size=6
)


@settings(max_examples=60, deadline=None)
@given(calls=_calls, events=_events)
def test_whatever_is_swapped_and_paused_when_each_token_has_its_version(
    shared, networks, folder, others, calls, events
):
    """Tokens of one version only: the logprobs are that version's. Across a swap: the spans say where it was, and the
    first span's logprobs are the old version's."""
    paths = [folder, *others]

    async def call(prompt, **asked):
        deltas = await collect(shared, prompt, ignore_eos=True, **asked)
        return prompt, asked, deltas

    async def play():
        await shared.set_weights("0.0", folder)
        running = [asyncio.create_task(call(**each)) for each in calls]
        pausing = []
        for number, (after_ms, event) in enumerate(events, 1):
            await asyncio.sleep(after_ms / 1000)
            if event == "swap":
                which = number % len(paths)
                await shared.set_weights(f"{number}.{which}", paths[which])
            elif event == "resume":
                await shared.resume()
            else:
                pausing.append(asyncio.create_task(shared.pause(event)))
                await asyncio.sleep(0)
        await shared.resume()
        await asyncio.wait_for(asyncio.gather(*pausing), 10)
        replies = await asyncio.wait_for(asyncio.gather(*running), 20)
        await idle(shared)
        return replies

    for prompt, asked, deltas in asyncio.run(play()):
        for index in range(asked["n"]):
            output, spans = ids_of(deltas, index), versions(deltas, index)
            last = [delta for delta in deltas if delta.index == index][-1]
            assert last.finish_reason in {"length", "abort"}
            assert last.finish_reason == "abort" or len(output) == asked["max_tokens"]
            edges = [0, *(end for _, end, _ in spans)]
            assert [(start, end) for start, end, _ in spans] == [*itertools.pairwise(edges)]
            assert edges[-1] == len(output)
            _, end, version = spans[0]
            network = networks[int(version.partition(".")[2])]
            expected = truth(network, prompt, output[:end])
            assert logprobs_of(deltas, index)[:end] == pytest.approx(expected, abs=1e-4)
