"""A whole rolltap that launches its engine: the engine is killed while it generates, rolltap ends or is killed."""

import asyncio
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import openai
import pytest

from served import QUESTION, engine_dies_mid_generation, served, until, until_gone

TESTS = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@pytest.fixture
def config(tmp_path, rolltap_tokenizer):
    """A config that launches the generating engine in vLLM's place."""
    package = tmp_path / "packages" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    shutil.copy(TESTS / "data" / "generating_engine.py", package / "api_server.py")
    for folder in (package, *list(package.parents)[:2]):
        (folder / "__init__.py").touch()
    environment = {
        "PYTHONPATH": f"{tmp_path / 'packages'}:{TESTS}",
        "ENGINE_IDS": " ".join(str(10 + number % 50) for number in range(60)) + " 2",
    }
    inline = ", ".join(f"{name} = {json.dumps(value)}" for name, value in environment.items())
    return f"""
        [store]
        kind = "memory"
        [[models]]
        name = "launched"
        tokenizer = {json.dumps(rolltap_tokenizer)}
        [[models.backends]]
        kind = "vllm"
        launch = "some/model"
        launch_env = {{{inline}}}
    """


@pytest.fixture
async def server(config, tmp_path):
    async with served(config, tmp_path) as server:
        yield server


async def test_an_engine_killed_while_it_generates_fails_its_request_and_nothing_else(server):
    for stream in (False, True):
        engine, _worker = server.engine_pids()
        message = await engine_dies_mid_generation(server, engine, stream=stream)
        if stream:
            assert "the vLLM server at http://127.0.0.1:" in message
            assert "broke off its reply" in message
        else:
            assert "Server disconnected" in message


async def test_a_request_to_an_engine_that_has_just_died_waits_and_is_finished_before_the_end(server):
    engine = server.engine_pids()
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        os.kill(engine[0], signal.SIGKILL)
        call = asyncio.ensure_future(client.chat.completions.create(model="launched", messages=QUESTION))
        await until_gone(engine)
        await until(lambda: len(server.engine_pids()) == 2)
        await asyncio.sleep(1)
        engine = server.engine_pids()
        assert await server.ended(signal.SIGTERM) == 0
        assert (await call).usage.completion_tokens == 61
    await until_gone(engine)


async def test_no_engine_outlives_a_rolltap_that_is_killed(server):
    engine = server.engine_pids()
    assert len(engine) == 2
    assert await server.ended(signal.SIGKILL) == -signal.SIGKILL
    await until_gone(engine)
