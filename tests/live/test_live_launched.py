"""A whole rolltap with a real vLLM of its own: the engine is killed while it generates, then rolltap is."""

import json
import signal
from pathlib import Path

import pytest

from served import engine_dies_mid_generation, served, until_gone

pytestmark = pytest.mark.live

ARGUMENTS = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "2048", "--enable-scale-out"]
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


@pytest.fixture
async def server(vllm_python, model_folder, tmp_path):
    environment = ", ".join(f"{name} = {json.dumps(value)}" for name, value in ENVIRONMENT.items())
    config = f"""
        [store]
        kind = "memory"
        [[models]]
        name = "launched"
        [[models.backends]]
        kind = "vllm"
        launch = {json.dumps(model_folder)}
        launch_args = {json.dumps(ARGUMENTS)}
        launch_python = {json.dumps(vllm_python)}
        launch_env = {{{environment}}}
        launch_wait_s = 400
    """
    async with served(config, tmp_path, patience_s=400) as server:
        yield server


def core_of(pids: list[int]) -> int:
    """The process that has the model: not the HTTP server, which comes first."""
    (core,) = [pid for pid in pids if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return core


async def test_the_engines_core_is_killed_while_it_generates_and_then_rolltap(server):
    message = await engine_dies_mid_generation(server, core_of(server.engine_pids()), stream=True)
    assert "EngineCore" in message or "broke off its reply" in message
    engine = server.engine_pids()
    assert core_of(engine) != engine[0]
    assert await server.ended(signal.SIGKILL) == -signal.SIGKILL
    await until_gone(engine)
