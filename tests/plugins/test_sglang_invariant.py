"""The invariant on SGLang's wire, in each of its forms: every recorded token scored again by the model behind it."""

import pytest
import pytest_asyncio
from aiohttp.test_utils import TestServer
from transformers import AutoTokenizer

import engine_suite
from rolltap.testing import serve
from scripted_sglang import HashedModel, ScriptedSGLang

pytestmark = pytest.mark.asyncio(loop_scope="module")

FORMS = {
    "cumulative": {},
    "incremental": {"incremental": True},
    "incremental, all logprobs": {
        "incremental": True,
        "slices_logprobs": False,
        "echoes": False,
        "older": True,
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=FORMS)
async def engine(request, rolltap_tokenizer):
    tokenizer = AutoTokenizer.from_pretrained(rolltap_tokenizer)
    model = HashedModel(tokenizer, tokenizer.eos_token_id)
    sglang = ScriptedSGLang(model, pause_s=0.001, **FORMS[request.param])
    async with TestServer(sglang.app()) as upstream:
        backend = {"kind": "sglang", "url": str(upstream.make_url("/")), "verify_share": 0.5}
        backend["logprobs_mode"] = "raw_logprobs"
        table = {"name": "hashed", "tokenizer": rolltap_tokenizer, "backends": [backend]}
        async with serve(config={"models": [table]}) as server:

            async def rescore(ids):
                return model.rescore(ids)

            async def running():
                return len(sglang.runs)

            engine = engine_suite.Engine(server.url, "hashed", rescore, running, model.end)
            yield engine
            await engine.close()


@pytest.mark.parametrize(
    "scenario",
    [*engine_suite.SCENARIOS, engine_suite.demanded_calls],
    ids=lambda scenario: scenario.__name__,
)
async def test_the_invariant(engine, scenario):
    await scenario(engine)


async def test_the_check_bites(engine):
    await engine_suite.damages_are_seen(engine)
