"""Rollouts in the trainers' own hands: exported rows in their classes, and their collectors fed through rolltap.

The model is scripted, everything else is real: the trainers, the agents' package, the server, the tokenizer.
"""

import asyncio
import itertools
import json
import os
import subprocess
from pathlib import Path

import pytest

from forests import CONVERSATION, RewardedNode, call, forest_of, leaves, summary
from rolltap import json_line
from rolltap.testing import ScriptedTokenBackend
from rolltap_plugins.exports import export_format

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).with_name("trainers")
AT_MOST_S = 300


@pytest.fixture(scope="session")
def trainers_python():
    """The interpreter of the environment that `.ci/trainers-env` builds."""
    python = ROOT / ".venv-trainers" / "bin" / "python"
    if not python.exists():
        message = f"{python.relative_to(ROOT)} is missing: .ci/trainers-env builds it"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return str(python)


def run(python, script, *arguments):
    """Run a script there; what it wrote to its standard output."""
    done = subprocess.run(
        [python, str(SCRIPTS / script), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=AT_MOST_S,
        env={
            **os.environ,
            "TRL_EXPERIMENTAL_SILENCE": "1",
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
        },
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


@pytest.fixture
async def collected(rolltap_serve, rolltap_tokenizer, trainers_python, tmp_path):
    """A function that lets a trainer's script collect rollouts: what it collected, and the record's nodes."""

    async def collect(script):
        server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, _answers()))
        out = tmp_path / "collected.json"
        await asyncio.to_thread(run, trainers_python, script, server.url, rolltap_tokenizer, str(out))
        async with server.http.get("/sessions") as response:
            sessions = (await response.json())["sessions"]
        sealed = [each["uuid"] for each in sessions if each["state"] == "sealed"]
        nodes = [node for uuid in sealed for node in await server.nodes(uuid)]
        assert all(node["metadata"]["trainable"] for node in nodes)
        return json.loads(out.read_text()), nodes

    return collect


def _answers():
    """A script of answers that differ, so that the rewards of a group do."""
    numbers = itertools.count()
    return lambda prompt_ids, sampling: "Yes. " * (next(numbers) % 7 + 1)


def test_exported_rows_load_in_the_trainers_classes(trainers_python, tmp_path):
    nodes = [
        RewardedNode(node, 1.0)
        for node in leaves(
            forest_of(
                call(
                    "a",
                    None,
                    [1, 2],
                    [([3, 4], [-0.5, -0.25], {"weight_versions": [[0, 2, 7]]}), ([9], [-0.125], {})],
                ),
                call("b", "a.0", [5], [([6], [-1.0], {"finish_reason": "length"})]),
            )
        )
        + leaves(forest_of(*CONVERSATION))
    ]
    names = ("trl-async", "verl", "tinker", "atropos", "atif", "openenv", "agent-lightning", "skyrl")
    rows = {
        name: [json.loads(json_line(row)) for row in export_format[name]().rows(summary(), nodes)]
        for name in names
    }
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows))
    read = json.loads(run(trainers_python, "load_rows.py", str(path)))
    assert set(read) == set(names)
    longer, other, talk = (
        ([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 1], [-0.5, -0.25, -1.0]),
        ([1, 2, 9], [0, 0, 1], [-0.125]),
        ([1, 2, 3, 4, 5], [0, 0, 1, 0, 1], [-0.5, -1.0]),
    )
    turns = [
        ([1, 2, 3, 4], [0, 0, 1, 1], [-0.5, -0.25]),
        ([1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 1], [-1.0]),
        other,
        ([1, 2, 3], [0, 0, 1], [-0.5]),
        ([1, 2, 3, 4, 5], [0, 0, 0, 0, 1], [-1.0]),
    ]
    for name, found in read.items():
        expected = turns if name in {"openenv", "agent-lightning"} else [longer, other, talk]
        trained = [
            (
                ids,
                [int(each) for each in mask],
                [value for value, shown in zip(values, mask, strict=True) if shown],
            )
            for ids, mask, values in found
        ]
        assert trained == expected, name


def recorded(nodes):
    """(ids, mask, logprobs with 0.0 on context) of nodes."""
    return [
        (
            node["tokens"],
            [int(token != -100) for token in node["masked_tokens"]],
            [
                value if token != -100 else 0.0
                for value, token in zip(node["logprobs"], node["masked_tokens"], strict=True)
            ],
        )
        for node in nodes
    ]


async def test_trl_s_trainer_steps_on_recorded_rollouts(collected):
    found, nodes = await collected("with_trl.py")
    rows = found["rows"]
    assert [
        (prompt + ids, [0] * len(prompt) + mask, [0.0] * len(prompt) + logprobs)
        for prompt, ids, mask, logprobs in zip(
            rows["prompt_ids"], rows["completion_ids"], rows["env_mask"], rows["logprobs"], strict=True
        )
    ] == recorded(nodes)
    assert rows["reward"] == [node["metadata"]["reward"] for node in nodes]
    for number, node in enumerate(nodes):
        real = [
            token
            for name in ("prompt", "completion")
            for token, shown in zip(found[f"{name}_ids"][number], found[f"{name}_mask"][number], strict=True)
            if shown
        ]
        assert real == node["tokens"]
    assert found["changed"]


async def test_trl_s_async_collector_takes_the_worker_s_samples(collected):
    found, nodes = await collected("with_trl_async.py")
    record = recorded(nodes)
    assert found["told"] == "rolltap's rollout worker has failed: I can't."
    assert len(found["samples"]) == 4
    for sample in found["samples"]:
        _, mask, _ = next(each for each in record if each[0] == sample["input_ids"])
        assert sample["completion_mask"] == mask
        assert sum(value != 0.0 for value in sample["old_log_probs"]) == sum(mask)


async def test_verl_s_agent_loop_gives_its_output(collected):
    found, nodes = await collected("with_verl.py")
    ((ids, mask, logprobs),) = recorded(nodes)
    assert found["prompts"] + found["responses"] == ids
    assert [0] * len(found["prompts"]) + found["response_mask"] == mask
    assert found["rollout_log_probs"] == pytest.approx(logprobs[len(found["prompts"]) :])
    assert found["reward_score"] == nodes[0]["metadata"]["reward"]
    assert nodes[0]["metadata"]["sampling"]["temperature"] == 0.5


async def test_a_trainer_of_atropos_gets_the_group(collected):
    found, nodes = await collected("with_atropos.py")
    (group,) = found
    assert group["tokens"] == [node["tokens"] for node in nodes]
    assert group["masks"] == [node["masked_tokens"] for node in nodes]
    assert group["inference_logprobs"] == [node["logprobs"] for node in nodes]
    assert group["scores"] == [node["metadata"]["reward"] for node in nodes]
