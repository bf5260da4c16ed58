"""The invariant on the embedded model: what rolltap records is what the model says it saw and produced."""

import asyncio

import pytest
import pytest_asyncio
import torch

import engine_suite
import local_models
from rolltap.server.state import MODELS
from rolltap.testing import serve
from rolltap_plugins.local import weights

assert weights.embedded_gguf() is not None, (
    f"the embedded weights are not installed: {weights.INSTALL_WEIGHTS}"
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine():
    table = {"name": "smol", "backends": [{"kind": "local"}]}
    async with serve(config={"models": [table]}) as server:
        (handle,) = server.app[MODELS].default.backends
        network = local_models.load(handle.backend.tokenizer)

        async def rescore(ids):
            """By transformers alone: one pass over all ids, no cache, no batch."""

            def score():
                torch.set_num_threads(
                    1
                )  # of this thread: two engines' threads on few cores wait for each other
                with torch.inference_mode():
                    rows = network(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
                return [None, *rows.gather(1, torch.tensor(ids[1:]).unsqueeze(1))[:, 0].tolist()]

            return await asyncio.to_thread(score)

        async def running():
            return (await handle.backend.check())["running"]

        engine = engine_suite.Engine(server.url, "smol", rescore, running)
        yield engine
        await engine.close()


@pytest.mark.parametrize("scenario", engine_suite.SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_the_invariant(engine, scenario):
    await scenario(engine)


async def test_the_check_bites(engine):
    await engine_suite.damages_are_seen(engine)
