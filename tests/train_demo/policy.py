"""The trainer's half: a policy-gradient step on exactly the ids, masks and logprobs that rolltap has recorded."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

ROWS_AT_ONCE = 8
CLIP = 0.2
"""How far a token's probability may move before its gradient is cut off, as in PPO."""

Row = dict[str, Any]
"""A row of rolltap's `jsonl` export."""


class Step(NamedTuple):
    """What a training step has found of its rows."""

    trained_rows: int
    largest_difference: float
    """Between a recorded logprob and the one that the trainer computes under the same weights."""
    ratios: tuple[float, float]
    """The smallest and the largest importance ratio of those tokens."""
    older_tokens: int
    """How many tokens were written by older weights than those that are trained, or behind keys and values of such."""


class Policy:
    """The network that learns, and its optimizer."""

    def __init__(self, source: str, *, lr: float) -> None:
        self.network: PreTrainedModel = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        self.network.train()
        self._optimizer = torch.optim.AdamW(
            self.network.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.0
        )

    def learn(self, rows: Sequence[Row], version: int) -> Step:
        """One step on the rows whose group had more than one result: the others say nothing. `version` is the network's."""
        taught = [
            (row, advantage) for row, advantage in zip(rows, advantages(rows), strict=True) if advantage
        ]
        tokens = sum(sum(row["mask"]) for row, _ in taught)
        differences, ratios, older = [0.0], [1.0], 0
        taught.sort(key=lambda pair: len(pair[0]["tokens"]))
        for start in range(0, len(taught), ROWS_AT_ONCE):
            batch = taught[start : start + ROWS_AT_ONCE]
            loss = torch.zeros(())
            for (row, advantage), now in zip(batch, self._logprobs([row for row, _ in batch]), strict=True):
                recorded = torch.tensor(_generated(row, "logprobs"))
                ratio = (now - recorded).exp()
                loss = loss - torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).sum()
                same = torch.tensor(written_by(row, version))
                older += int((~same).sum())
                differences += (now - recorded)[same].abs().tolist()
                ratios += ratio[same].tolist()
            (loss / tokens).backward()
        if taught:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            self._optimizer.step()
            self._optimizer.zero_grad()
        return Step(len(taught), max(differences), (min(ratios), max(ratios)), older)

    def _logprobs(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        """Each row's logprobs of its generated tokens.

        What all rows begin with is run once; behind it they are padded at the right, where no token sees it.
        """
        ids = [row["tokens"] for row in rows]
        first = min(row["mask"].index(True) for row in rows) - 1  # its successor's logprob is wanted
        shared = next((at for at in range(first) if len({row[at] for row in ids}) > 1), first)
        begun = self.network.model(torch.tensor([ids[0][:shared]]), use_cache=True) if shared else None
        cache = begun.past_key_values if begun is not None else None
        if cache is not None:
            cache.batch_repeat_interleave(len(rows))
        width = max(map(len, ids)) - shared
        rest = torch.tensor([row[shared:] + [0] * (width - len(row) + shared) for row in ids])
        hidden = self.network.model(
            rest, past_key_values=cache, use_cache=cache is not None
        ).last_hidden_state
        found = []
        for place, row in enumerate(rows):
            wanted = [at for at, generated in enumerate(row["mask"]) if generated]
            before = torch.tensor(wanted) - 1 - shared
            logits = self.network.lm_head(hidden[place, before]).float()
            targets = torch.tensor([row["tokens"][at] for at in wanted])
            found.append(logits.log_softmax(-1).gather(1, targets.unsqueeze(1))[:, 0])
        return found


def advantages(rows: Sequence[Row]) -> list[float]:
    """Each row's reward less the mean of its group."""
    groups = defaultdict(list)
    for row in rows:
        groups[row["group"]].append(row["reward"])
    means = {group: fmean(rewards) for group, rewards in groups.items()}
    found = [row["reward"] - means[row["group"]] for row in rows]
    return [0.0 if abs(advantage) < 1e-9 else advantage for advantage in found]


def _generated(row: Row, name: str) -> list[Any]:
    return [value for value, generated in zip(row[name], row["mask"], strict=True) if generated]


def replies(row: Row) -> Iterator[list[int]]:
    """The places of each reply's tokens, reply by reply."""
    for generated, places in itertools.groupby(range(len(row["mask"])), row["mask"].__getitem__):
        if generated:
            yield list(places)


def written_by(row: Row, version: int) -> list[bool]:
    """For each generated token, whether its whole reply is of this version: not even keys and values are of another."""
    return [all(row["versions"][at] == str(version) for at in reply) for reply in replies(row) for _ in reply]
