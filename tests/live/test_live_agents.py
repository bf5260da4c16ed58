"""Agents as people run them, not changed in any way: each does a task with a tool call, and its session holds one exact node.

The model is scripted, everything else is real: the agent, its tools, the server, the tokenizer.
"""

import asyncio
import json
import os
import shlex
import signal
from pathlib import Path

import pytest

from readme_settings import setting
from rolltap.testing import MODEL, ScriptedTokenBackend, assert_exact

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / ".venv-clients"
AT_MOST_S = 180
TASK = "Please do it."

QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "IS_SANDBOX": "1",  # Claude Code refuses to act without asking as root elsewhere
    "MSWEA_CONFIGURED": "1",  # mini-swe-agent asks for keys the first time
}
"""What keeps the command lines from calling home or asking; no part of pointing them here."""


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


MAKE = "echo made by an agent > made.txt"
COMMANDS = {
    "Claude Code": (
        ["-p", TASK, "--dangerously-skip-permissions", "--output-format", "json"],
        [call("Bash", command=MAKE, description="Make it"), "Done."],
    ),
    "Codex": (
        ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK],
        [call("exec_command", cmd=MAKE), "Done."],
    ),
    "mini-swe-agent": (
        ["--yolo", "--exit-immediately", "-t", TASK],
        [call("bash", command=MAKE), call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")],
    ),
}
FRAMEWORKS = {
    "LangChain": ("with_langchain.py", "Done."),
    "OpenAI Agents SDK": ("with_openai_agents.py", "Done."),
    "pydantic-ai": ("with_pydantic_ai.py", "Done."),
}


@pytest.fixture(scope="session")
def clients():
    """The folder that `.ci/agents` fills."""
    if not (CLIENTS / ".made-of").exists():
        message = f"{CLIENTS.relative_to(ROOT)} is missing: .ci/agents builds it"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return CLIENTS


@pytest.fixture
def run(clients, tmp_path):
    """Runs a command in a folder and a home of its own, and ends it with all its children after a while."""

    async def command(*arguments, **environment):
        for folder in ("home", "work"):
            (tmp_path / folder).mkdir()
        path = os.pathsep.join(map(str, (clients / "node_modules/.bin", clients / "bin", os.environ["PATH"])))
        process = await asyncio.create_subprocess_exec(
            *arguments,
            cwd=tmp_path / "work",
            env={"PATH": path, "HOME": str(tmp_path / "home"), **QUIET, **environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(AT_MOST_S):
                out, err = await process.communicate()
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = await process.communicate()
            pytest.fail(f"{arguments[0]} did not end in {AT_MOST_S} s:\n{out.decode()}\n{err.decode()}")
        assert process.returncode == 0, f"{out.decode()}\n{err.decode()}"
        return out.decode()

    return command


@pytest.fixture
async def rollout(rolltap_serve, rolltap_tokenizer):
    """Serves a script, gives the README's setting for a client, and checks the record."""

    class Rollout:
        async def begin(self, client, *script):
            self.backend = ScriptedTokenBackend(rolltap_tokenizer, script)
            self.server = await rolltap_serve(self.backend)
            self.session = await self.server.session()
            return setting(client, self.server.url, self.session, MODEL)

        async def check(self):
            first, last = self.backend.calls
            (node,) = await self.server.nodes(self.session)
            assert node["metadata"]["trainable"]
            assert_exact(node, last, first)
            return node

    return Rollout()


@pytest.mark.parametrize("client", COMMANDS)
async def test_command_line(rollout, run, tmp_path, client):
    options, script = COMMANDS[client]
    words = shlex.split(await rollout.begin(client, *script))
    command = next(at for at, word in enumerate(words) if not word.partition("=")[0].isupper())
    environment = dict(word.split("=", 1) for word in words[:command])
    out = await run(*words[command:], *options, **environment)
    assert (tmp_path / "work/made.txt").read_text() == "made by an agent\n"
    assert client == "mini-swe-agent" or "Done." in out
    node = await rollout.check()
    assert TASK in node["full_text"]


@pytest.mark.parametrize("client", FRAMEWORKS)
async def test_framework(rollout, run, client):
    script, end = FRAMEWORKS[client]
    line = await rollout.begin(client, call("shout", text="hello"), end)
    out = await run("python", str(Path(__file__).parent / "agents" / script), line, TASK)
    assert out.strip().endswith("Done.")
    node = await rollout.check()
    assert "HELLO!" in node["full_text"]


async def test_an_agent_that_rewrites_its_history_gets_a_node_for_each_step(rollout, run):
    """smolagents sends the model's calls back as prose: what the model said is recorded, and why it branched."""
    end = call("final_answer", answer="Done.")
    line = await rollout.begin("smolagents", call("shout", text="hello"), end)
    out = await run("python", str(Path(__file__).parent / "agents/with_smolagents.py"), line, TASK)
    assert out.strip() == "Done."
    nodes = await rollout.server.nodes(rollout.session)
    for node, asked in zip(nodes, rollout.backend.calls, strict=True):
        assert_exact(node, asked)
        assert node["metadata"]["trainable"]
    assert nodes[1]["metadata"]["branch_reason"] == "messages[2].content differs"
