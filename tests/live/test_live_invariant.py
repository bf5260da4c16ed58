"""The invariant on real vLLM servers, with the token endpoint and without: each recorded token scored again by vLLM."""

import aiohttp
import pytest
import pytest_asyncio

import engine_suite
from rolltap.testing import serve

pytestmark = [pytest.mark.live, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["generate", "completions"])
async def engine(request, live_vllm):
    url = live_vllm.tokens_url if request.param == "generate" else live_vllm.completions_url
    table = {"name": "smol", "tokenizer": live_vllm.folder, "backends": [{"kind": "vllm", "url": url}]}
    async with serve(config={"models": [table]}) as server, aiohttp.ClientSession(url) as vllm:

        async def rescore(ids):
            """By vLLM itself, as the logprobs of a prompt: without its prefix cache, and without rolltap."""
            body = {"model": "smol", "prompt": ids, "prompt_logprobs": 0, "max_tokens": 1, "temperature": 0.0}
            async with vllm.post("/v1/completions", json=body) as response:
                reply = await response.json()
            assert response.status == 200, reply
            scored = reply["choices"][0]["prompt_logprobs"]
            return [
                None,
                *(each[str(token)]["logprob"] for token, each in zip(ids[1:], scored[1:], strict=True)),
            ]

        async def running():
            async with vllm.get("/metrics") as response:
                lines = (await response.text()).splitlines()
            (line,) = [line for line in lines if line.startswith("vllm:num_requests_running{")]
            return float(line.rsplit(" ", 1)[1])

        engine = engine_suite.Engine(server.url, "smol", rescore, running)
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
