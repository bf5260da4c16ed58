"""Real vLLM servers for the live tests: started once, one with the token endpoint and one without."""

import asyncio
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from rolltap_plugins.local.options import LocalOptions
from rolltap_plugins.local.weights import locate
from rolltap_plugins.upstream import guard
from rolltap_plugins.upstream.engine import free_port

ROOT = Path(__file__).parents[2]
READY_S = 300
ARGUMENTS = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "2048"]
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


@dataclass(frozen=True)
class LiveVLLM:
    """Where the servers are and what they serve, under the name "smol"."""

    tokens_url: str
    """Has `/inference/v1/generate`."""
    completions_url: str
    """Has not; its development mode is on, so it tells its weights' version and its logprobs' mode."""
    folder: str
    """The model, to take the tokenizer from."""


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """The interpreter of the environment that `.ci/vllm-env` builds."""
    python = ROOT / ".venv-vllm" / "bin" / "python"
    if not python.exists():
        message = f"{python.relative_to(ROOT)} is missing: .ci/vllm-env builds it"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return str(python)


@pytest.fixture(scope="session")
def model_folder() -> str:
    """The embedded model as safetensors, converted where that has not been done yet."""
    return asyncio.run(locate(LocalOptions()))


@pytest.fixture(scope="session")
def live_vllm(
    vllm_python: str, model_folder: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveVLLM]:
    """Two servers, ended with the test run however that ends."""
    logs = tmp_path_factory.mktemp("vllm")
    with (
        (logs / "tokens.log").open("wb") as tokens_log,
        (logs / "completions.log").open("wb") as completions_log,
    ):
        tokens = Server(vllm_python, model_folder, tokens_log, "--enable-scale-out")
        completions = Server(vllm_python, model_folder, completions_log, VLLM_SERVER_DEV_MODE="1")
        try:
            for server in (tokens, completions):
                server.wait()
            yield LiveVLLM(tokens.url, completions.url, model_folder)
        finally:
            for server in (tokens, completions):
                server.end()


class Server:
    """One vLLM server below a guard, which ends it when this process does."""

    def __init__(self, python: str, folder: str, log: IO[bytes], *arguments: str, **environment: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = Path(log.name)
        command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", folder]
        command += ["--served-model-name", "smol", "--host", "127.0.0.1", "--port", str(port)]
        self._process = subprocess.Popen(
            [sys.executable, "-I", guard.__file__, "10", *command, *ARGUMENTS, *arguments],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ENVIRONMENT, **environment},
        )

    def wait(self) -> None:
        """Wait until it is ready, and through its first reply: that one compiles for many seconds."""
        end = time.monotonic() + READY_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"vLLM did not get ready:\n{self._log.read_text(errors='replace')[-5000:]}")
            time.sleep(0.5)
        body = b'{"model": "smol", "prompt": [1, 2], "max_tokens": 2}'
        request = urllib.request.Request(
            f"{self.url}/v1/completions", data=body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=READY_S):
            pass

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def end(self) -> None:
        """End it and wait for that."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
