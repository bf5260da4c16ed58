"""Loads exported rows with the trainers' own classes: `python load_rows.py ROWS`, a JSON file of rows by format.

Writes JSON: for each format the ids, masks and logprobs that its classes hold, row by row.
"""

# ruff: noqa: PLC0415 - each format imports its own trainer

import ast
import json
import sys
from importlib.metadata import distribution
from pathlib import Path


def trl_async(rows):
    from trl.experimental.async_grpo.async_rollout_worker import TrainingSequence

    sequences = [TrainingSequence(**row) for row in rows]
    return [(each.input_ids, each.completion_mask, each.old_log_probs) for each in sequences]


def verl(rows):
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

    read = []
    for row in rows:
        output = AgentLoopOutput(**row)
        batch = output.as_dict()
        read.append(
            (
                [*batch["prompts"].tolist(), *batch["responses"].tolist()],
                [0] * len(output.prompt_ids) + batch["response_mask"].tolist(),
                [0.0] * len(output.prompt_ids) + output.response_logprobs,
            )
        )
    return read


def tinker(rows):
    from tinker import Datum, ModelInput, TensorData

    read = []
    for row in rows:
        inputs = {name: TensorData(**tensor) for name, tensor in row["loss_fn_inputs"].items()}
        datum = Datum(model_input=ModelInput(**row["model_input"]), loss_fn_inputs=inputs)
        targets, mask, logprobs = (
            datum.loss_fn_inputs[name].data for name in ("target_tokens", "mask", "logprobs")
        )
        ids = datum.model_input.to_ints()
        assert ids[1:] == targets[:-1]
        read.append(([ids[0], *targets], [0, *mask], [0.0, *logprobs]))
    return read


def atropos(rows):
    from atroposlib.api.server import ScoredData

    read = []
    for row in rows:
        group = ScoredData(**row)
        for ids, masked, logprobs in zip(group.tokens, group.masks, group.inference_logprobs, strict=True):
            read.append((ids, [token != -100 for token in masked], logprobs))
    return read


def atif(rows):
    from harbor.models.trajectories import Trajectory

    read = []
    for row in rows:
        steps = Trajectory(**row).steps
        metrics = [each.metrics for each in steps if each.metrics and each.metrics.completion_token_ids]
        last = metrics[-1]
        ids = last.prompt_token_ids + last.completion_token_ids
        mask, logprobs = [0] * len(ids), [0.0] * len(ids)
        for each in metrics:
            start = len(each.prompt_token_ids)
            stop = start + len(each.completion_token_ids)
            mask[start:stop], logprobs[start:stop] = [1] * (stop - start), each.logprobs
        read.append((ids, mask, logprobs))
    return read


def openenv(rows):
    from openenv.core.harness.training import TrainingTrace

    read = []
    for turn in TrainingTrace.from_entries(rows).turns:
        ids = turn.prompt_token_ids + turn.completion_token_ids
        read.append((ids, turn.loss_mask, [0.0] * len(turn.prompt_token_ids) + turn.per_token_logps))
    return read


def agent_lightning(rows):
    from agentlightning.verl.agl_rollout_manager import Triplet

    read = []
    for row in rows:
        triplet = Triplet(**row)
        prompt, response = triplet.prompt["token_ids"], triplet.response["token_ids"]
        mask = [0] * len(prompt) + [1] * len(response)
        read.append((prompt + response, mask, [0.0] * len(prompt) + triplet.response["log_probs"]))
    return read


def skyrl(rows):
    """SkyRL is read, not imported: it asks for an accelerator's build of torch."""
    path = Path(distribution("skyrl").locate_file("skyrl/train/generators/base.py"))
    fields = next(
        {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "GeneratorOutput"
    )
    for row in rows:
        assert set(row) <= fields, set(row) - fields
    return [
        (
            row["prompt_token_ids"] + row["response_ids"],
            [0] * len(row["prompt_token_ids"]) + row["loss_masks"],
            [0.0] * len(row["prompt_token_ids"]) + row["rollout_logprobs"],
        )
        for row in rows
    ]


LOADERS = {
    "trl-async": trl_async,
    "verl": verl,
    "tinker": tinker,
    "atropos": atropos,
    "atif": atif,
    "openenv": openenv,
    "agent-lightning": agent_lightning,
    "skyrl": skyrl,
}

if __name__ == "__main__":
    found = {name: LOADERS[name](rows) for name, rows in json.loads(Path(sys.argv[1]).read_text()).items()}
    sys.stdout.write(json.dumps(found))
