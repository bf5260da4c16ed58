"""TRL's asynchronous collector on rolltap's worker: `python with_trl_async.py URL TOKENIZER OUT`.

Writes the samples that `RolloutQueueDataset` hands to the trainer, and what a worker says whose agent fails.
"""

import json
import sys
import time
from collections import defaultdict
from itertools import islice
from pathlib import Path

import numpy as np
from playing import QUESTION, agent
from trl.experimental.async_grpo.async_grpo_trainer import RolloutQueueDataset

from rolltap_plugins.trainers.trl_async import RolloutWorker

url, _, out = sys.argv[1:]
worker = RolloutWorker(url, agent, [[{"role": "user", "content": QUESTION}]], num_generations=2, groups=2)
worker.update_model_version(3)
worker.start()
dataset = RolloutQueueDataset(
    rollout_queue=worker.rollout_buffer,
    model_version_fn=lambda: 3,
    check_health_fn=worker.check_health,
    stale_after_s=60.0,
    metrics=defaultdict(list),
    max_staleness=4,
    report_to="none",
)
samples = list(islice(dataset, 4))
worker.stop()


def unwell(session, task):
    """An agent that fails."""
    raise ValueError("I can't.")


broken = RolloutWorker(url, unwell, ["Hi."], num_generations=1, groups=1)
broken.start()
told = ""
while not told:
    time.sleep(0.05)
    try:
        broken.check_health(20.0)
    except RuntimeError as error:
        told = str(error)
broken.stop()

kept = ("input_ids", "completion_mask", "old_log_probs", "advantage", "group_id")
rows = [{name: np.asarray(each[name]).tolist() for name in kept} for each in samples]
Path(out).write_text(json.dumps({"samples": rows, "told": told}))
