"""An engine that rolltap launches: started, watched, started again, and never left behind. The engine is a real child."""

import asyncio
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import aiohttp
import pytest

from rolltap import ConfigError, RolltapError, Sampling, TokenRequest, UpstreamError
from rolltap_plugins.upstream import engine
from rolltap_plugins.vllm import Options, VLLMBackend

FAKE = Path(__file__).parent.parent / "data" / "fake_engine.py"


@pytest.fixture
def fake_vllm(tmp_path):
    """A folder with a package "vllm" whose server is the fake engine; a path for the interpreter."""
    folder = tmp_path / "packages"
    package = folder / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for name in (folder / "vllm", folder / "vllm" / "entrypoints", package):
        (name / "__init__.py").touch()
    shutil.copy(FAKE, package / "api_server.py")
    return folder


@pytest.fixture
def pids(tmp_path):
    """The file in which the fake engine notes its process and its worker's."""
    return tmp_path / "pids"


@pytest.fixture
async def launch(fake_vllm, pids, monkeypatch):
    """A function that makes a backend with an engine of its own."""
    monkeypatch.setattr(engine, "_GRACE_S", 1.0)
    monkeypatch.setattr(engine, "_POLL_S", 0.05)
    backends = []

    def make(mode="", **options):
        environment = {"PYTHONPATH": str(fake_vllm), "FAKE_ENGINE": mode, "FAKE_ENGINE_PIDS": str(pids)}
        table = {"launch": "some/model", "launch_env": environment, **options}
        backend = VLLMBackend(Options.read(table, "named"), "named")
        backends.append(backend)
        return backend

    yield make
    for backend in backends:
        await backend.close()


def started(pids):
    """The processes of every start so far."""
    return (
        [int(pid) for line in pids.read_text().splitlines() for pid in line.split()] if pids.exists() else []
    )


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def until_gone(processes):
    assert processes
    await until(lambda: not any(alive(pid) for pid in processes))


async def until(condition):
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.02)
    pytest.fail("it did not happen within 10 s")


async def get(backend, path):
    async with aiohttp.ClientSession() as session, session.get(backend.url + path) as response:
        return response.status


async def test_an_engine_is_ready_when_start_returns_and_gone_after_close(launch, pids):
    backend = launch()
    await backend.start()
    assert await get(backend, "/health") == 200
    processes = started(pids)
    assert len(processes) == 2
    assert all(alive(pid) for pid in processes)
    await backend.close()
    await until_gone(processes)


async def test_an_engine_that_ignores_the_request_to_end_is_killed(launch, pids):
    backend = launch("stubborn")
    await backend.start()
    began = time.monotonic()
    await backend.close()
    assert time.monotonic() - began < 5
    await until_gone(started(pids))


async def test_its_lines_go_on_to_the_log(launch, caplog):
    with caplog.at_level(logging.INFO, logger="rolltap_plugins.upstream.engine"):
        await launch(launch_args=["--dtype", "float32"]).start()
    output = [
        (record.levelname, record.message) for record in caplog.records if record.name.endswith(".output")
    ]
    arguments = "['--served-model-name', 'named', '--dtype', 'float32']"
    assert ("INFO", f"INFO 01-01 [fake.py:1] engine of some/model with {arguments}") in output
    assert ("WARNING", "WARNING 01-01 [fake.py:2] beware") in output
    assert "is ready after" in caplog.text


async def test_an_engine_that_can_not_start_ends_the_start_with_its_last_words(launch):
    with pytest.raises(RolltapError, match=r"engine of model 'named' ended: .*\n(.*\n)*.*no such flag"):
        await launch("broken").start()


async def test_an_engine_that_never_gets_ready_is_given_up_and_ended(launch, pids):
    with pytest.raises(RolltapError, match="not ready within 1 s"):
        await launch("slow", launch_timeout_s=1).start()
    await until_gone(started(pids))


async def test_a_start_that_is_cancelled_leaves_nothing(launch, pids):
    task = asyncio.create_task(launch("slow").start())
    await until(lambda: len(started(pids)) == 2)
    task.cancel()
    await asyncio.wait([task])
    await until_gone(started(pids))


async def test_an_engine_that_dies_is_started_again_and_requests_wait(launch, pids):
    backend = launch()
    await backend.start()
    first = started(pids)
    with pytest.raises(aiohttp.ClientConnectionError):
        await get(backend, "/die")
    await until_gone(first)  # its worker too
    await asyncio.sleep(0.1)
    await backend._engine.wait_ready()
    assert await get(backend, "/health") == 200
    assert len(started(pids)) == 4


@pytest.mark.parametrize(("settled_s", "failures"), [(0.0, 1), (60.0, 2)])
async def test_an_engine_that_ran_for_long_is_as_good_as_new(launch, pids, monkeypatch, settled_s, failures):
    monkeypatch.setattr(engine, "_SETTLED_S", settled_s)
    backend = launch()
    await backend.start()
    for processes in (4, 6):
        with pytest.raises(aiohttp.ClientConnectionError):
            await get(backend, "/die")
        await until(lambda expected=processes: len(started(pids)) == expected)
        await until(backend._engine._ready.is_set)
    assert backend._engine._failures == failures


async def test_requests_wait_only_so_long(launch):
    backend = launch(launch_wait_s=0.2)
    await backend.start()
    with pytest.raises(aiohttp.ClientConnectionError):
        await get(backend, "/die")
    await asyncio.sleep(0.1)
    with pytest.raises(
        UpstreamError, match=r"engine of model 'named' is not running: .*\n(.*\n)*.*beware"
    ) as caught:
        async for _ in backend.generate(TokenRequest(prompt_ids=[1], sampling=Sampling())):
            pass
    assert caught.value.status == 503
    assert int(caught.value.headers["retry-after"]) >= 1


async def test_after_several_failed_starts_requests_are_told_at_once(launch, fake_vllm):
    backend = launch(launch_wait_s=60)
    await backend.start()
    server = fake_vllm / "vllm" / "entrypoints" / "openai" / "api_server.py"
    server.write_text("raise SystemExit('ERROR out of memory')")
    with pytest.raises(aiohttp.ClientConnectionError):
        await get(backend, "/die")
    await until(lambda: backend._engine._failures >= 2)
    with pytest.raises(UpstreamError, match="out of memory"):
        await backend._engine.wait_ready()


async def test_an_interpreter_without_vllm_is_a_config_error(launch):
    with pytest.raises(ConfigError, match=r"has no vLLM; install it there .*'launch_python'"):
        await launch(launch_env={"PYTHONPATH": ""}).start()


async def test_an_interpreter_that_is_not_there_is_a_config_error(launch):
    with pytest.raises(ConfigError, match="can't run launch_python '/no/python'"):
        await launch(launch_python="/no/python").start()


async def test_the_command_is_used_where_the_distribution_has_it(launch, fake_vllm, caplog):
    metadata = fake_vllm / "vllm-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 1.0\n")
    command = fake_vllm / "vllm" / "entrypoints" / "cli"
    command.mkdir()
    (command / "__init__.py").touch()
    (command / "main.py").write_text("import sys\nsys.exit(f'called with {sys.argv[1:3]}')")
    with pytest.raises(RolltapError, match=r"called with \['serve', 'some/model'\]"):
        await launch().start()


RUNS_AN_ENGINE = """
    import asyncio, json, sys
    from rolltap_plugins.vllm import create_backend

    async def main():
        options = {"launch": "some/model", "launch_env": json.loads(sys.argv[1])}
        await create_backend("vllm", options, "named").start()
        print("ready", flush=True)
        await asyncio.sleep(600)

    asyncio.run(main())
"""


@pytest.mark.parametrize("mode", ["", "stubborn"])
async def test_no_engine_outlives_a_rolltap_that_was_killed(fake_vllm, pids, mode, monkeypatch):
    environment = {"PYTHONPATH": str(fake_vllm), "FAKE_ENGINE": mode, "FAKE_ENGINE_PIDS": str(pids)}
    source = textwrap.dedent(RUNS_AN_ENGINE).replace(
        "from rolltap_plugins.vllm import create_backend",
        "from rolltap_plugins.upstream import engine; engine._GRACE_S = 1.0\n"
        "from rolltap_plugins.vllm import create_backend",
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", source, json.dumps(environment), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    processes = started(pids)
    assert all(alive(pid) for pid in processes)
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    await until_gone(processes)
