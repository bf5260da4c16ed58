"""One step of TRL's GRPOTrainer on rollouts through rolltap: `python with_trl.py URL TOKENIZER OUT`.

Writes what the trainer has collected for its loss, and whether its weights have changed.
"""

import json
import sys
from pathlib import Path

import torch
from datasets import Dataset
from playing import QUESTION, agent
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer

from rolltap_plugins.trainers.trl import recorded_reward, rollout_func

url, folder, out = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
)
before = {name: weights.clone() for name, weights in model.state_dict().items()}
collected = {}


class Trainer(GRPOTrainer):
    """Keeps what was collected."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        for name in (
            "prompt_ids",
            "prompt_mask",
            "completion_ids",
            "completion_mask",
            "tool_mask",
            "advantages",
        ):
            collected[name] = batch[name].tolist()
        return batch


rollouts = rollout_func(url, agent)
trainer = Trainer(
    model,
    reward_funcs=recorded_reward,
    rollout_func=lambda prompts, trainer: collected.setdefault("rows", rollouts(prompts, trainer)),
    args=GRPOConfig(
        output_dir=str(Path(out).with_suffix(".run")),
        per_device_train_batch_size=4,
        num_generations=2,
        max_steps=1,
        learning_rate=1.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
    ),
    train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": QUESTION}]}] * 4),
    processing_class=tokenizer,
)
trainer.train()
collected["changed"] = any(
    not torch.equal(before[name], weights) for name, weights in trainer.model.state_dict().items()
)
Path(out).write_text(json.dumps(collected))
