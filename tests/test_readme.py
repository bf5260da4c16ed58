"""What the README shows is what happens."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import openai
import pytest

from rolltap.config import Config
from rolltap.testing import ScriptedTokenBackend

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The address of the embedded model, served as `make run` does."""
    log = (tmp_path_factory.mktemp("serve") / "log").open("w+")
    process = subprocess.Popen(
        [Path(sys.executable).with_name("rolltap"), "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    with process, log:
        line = process.stdout.readline()
        assert line.startswith("rolltap is serving smollm2-135m on "), Path(log.name).read_text()
        yield line.split()[-1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_the_first_example_prints_what_the_readme_shows(served):
    code, shown = blocks("python")[0], blocks("text")[0]
    script = code.replace("http://127.0.0.1:9100", served)
    assert script.count(served) == 2
    got = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    for printed, expected in zip(got.splitlines(), shown.splitlines(), strict=True):
        for word, wanted in zip(printed.split(), expected.split(), strict=True):
            if re.fullmatch(r"-?\d+\.\d+", wanted):
                assert float(word) == pytest.approx(float(wanted), abs=0.02)
            else:
                assert word == wanted


async def test_the_parser_is_ten_lines_and_works(rolltap_serve, rolltap_tokenizer, tmp_path):
    code = blocks("python")[1]
    body = [line for line in code.splitlines() if line.strip() and not line.startswith(("import", "@"))]
    assert len(body) <= 10
    (tmp_path / "angle.py").write_text(code)
    backend = ScriptedTokenBackend(rolltap_tokenizer, ['Sure. <call>search: {"q": "a b"}</call> Done.'])
    server = await rolltap_serve(
        backend, config={"plugins": {"dir": str(tmp_path)}}, model={"tool_parser": "angle"}
    )
    tools = [{"type": "function", "function": {"name": "search", "parameters": {}}}]
    status, answer = await server.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "tools": tools}
    )
    assert status == 200, answer
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("search", '{"q": "a b"}')


@pytest.mark.parametrize(("kind", "commented"), [("vllm", 0), ("sglang", 1)])
def test_the_config_is_one_on_each_engine(kind, commented):
    (toml,) = blocks("toml")
    *lines, vllm, sglang = toml.strip().splitlines()
    assert sglang.startswith("# ")
    lines.append((vllm, sglang.removeprefix("# "))[commented])
    (model,) = Config.load(tomllib.loads("\n".join(lines))).models
    assert (model.name, model.backends[0].kind) == ("qwen3-4b", kind)
    assert len(lines) == 5


def agent(session, prompt):
    """What the README's agent does, and a reward."""
    with openai.OpenAI(base_url=session.base_url, api_key="unused") as client:
        client.chat.completions.create(model=session.model_name, messages=prompt)
    return 1.0


def trained(code, server, **given):
    """The names that an example of the README leaves, run in a thread."""
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 10
    names = dict(given)
    exec(code.replace("http://127.0.0.1:9100", server.url), names)
    return names


async def test_trl_takes_ten_lines(rolltap_serve, rolltap_tokenizer, monkeypatch):
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, lambda ids, sampling: "It is 42."))
    prompts, collected = [[{"role": "user", "content": "What is six times seven?"}]] * 2, {}

    class GRPOTrainer:
        """What TRL's does with what it is given; tests/live has the real one."""

        def __init__(self, model, *, reward_funcs, rollout_func, train_dataset):
            self.rollouts, self.rewards, self.prompts = rollout_func, reward_funcs, train_dataset

        def train(self):
            batch = self.rollouts(self.prompts, self)
            collected["rewards"] = self.rewards(batch["completion_ids"], **batch)

    monkeypatch.setitem(sys.modules, "trl", SimpleNamespace(GRPOTrainer=GRPOTrainer))
    await asyncio.to_thread(trained, blocks("python")[2], server, model=None, tasks=prompts)
    assert collected["rewards"] == [1.0, 1.0]


async def test_any_other_trainer_takes_ten_lines(rolltap_serve, rolltap_tokenizer):
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, lambda ids, sampling: "It is 42."))
    names = await asyncio.to_thread(trained, blocks("python")[3], server, agent=agent)
    assert [row["reward_score"] for row in names["rows"]] == [1.0] * 8


async def test_the_loop_around_new_weights_runs(rolltap_serve, rolltap_tokenizer):
    (code,) = [block for block in blocks("python") if "rolltap.pause(" in block]
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, ["Hi."]))
    session = await server.session()
    await server.post(f"/{session}/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})
    script = code.replace("http://127.0.0.1:9100", server.url).replace("SESSION", repr(session))
    await asyncio.to_thread(exec, script, {})
    async with server.http.get("/admin/state") as response:
        state = await response.json()
    assert (state["paused"], state["versions"]) == (False, {"test-model": 3})
