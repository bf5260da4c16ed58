"""verl's AgentLoop through rolltap: `python with_verl.py URL TOKENIZER OUT`.

Instantiated by hydra from its entry in a file, as verl's worker does it. Writes what `AgentLoopOutput` holds.
"""

import asyncio
import json
import sys
from pathlib import Path

import hydra
from omegaconf import OmegaConf
from playing import QUESTION
from transformers import AutoTokenizer
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.utils.dataset.rl_dataset import RLHFDataset

url, folder, out = sys.argv[1:]
entry = OmegaConf.create(
    {
        "name": "rolltap",
        "_target_": "rolltap_plugins.trainers.verl.RolltapAgentLoop",
        "url": url,
        "agent": "playing:agent",
    }
)
config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"prompt_length": 512}}, "data": {}})


async def main():
    """One sample."""
    del entry["name"]
    loop = hydra.utils.instantiate(
        entry,
        trainer_config=DictConfigWrap(config=config),
        server_manager=None,
        tokenizer=AutoTokenizer.from_pretrained(folder),
        processor=None,
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(config.data),
    )
    raw_prompt = [{"role": "user", "content": QUESTION}]
    output = await loop.run({"temperature": 0.5, "top_p": 1.0, "logprobs": True}, raw_prompt=raw_prompt)
    batch = {
        name: value.tolist() if hasattr(value, "tolist") else value
        for name, value in output.as_dict().items()
    }
    return {**batch, "reward_score": output.reward_score}


Path(out).write_text(json.dumps(asyncio.run(main())))
