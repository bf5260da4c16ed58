"""`make train-demo`: an agent that knows of no training learns to guess a number, by what rolltap records of it.

The agent (`game.py`) is written with the openai package. `rolltap serve` runs the embedded SmolLM2-135M in a process of its
own; sessions, rewards, rows and new weights go through `rolltap.client`. Each step learns from exactly the recorded ids,
masks and logprobs (`policy.py`), and the new weights are loaded while the next step's agents are in the middle of
their replies: no call ends by it, and the record says which weights wrote which token.

    python tests/train_demo [--seeds 1 2 3] [--steps 16] [--threads N] [--plot FILE] [--results FILE]

What is printed of each step proves the record: recorded logprobs against those that the trainer computes under the same
weights (at most 1e-3 apart), and importance ratios (1 ± 1e-3 for the first step). The run fails where that does not hold.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import fmean

import torch
from game import NUMBERS, Game, play
from openai import OpenAI
from plot import Run, draw
from policy import Policy, Row, Step
from transformers.utils import logging

from rolltap.client import Client, Session
from rolltap_plugins.local.options import LocalOptions
from rolltap_plugins.local.weights import locate

MODEL = "smollm2-135m"
GAMES_A_SECRET = 4
LEARNING_RATE = 1e-5
MOST_DIFFERENCE = 1e-3


class Rollouts:
    """The games of one step: a session each, played in threads, rewarded and sealed when they are over."""

    def __init__(self, client: Client, pool: ThreadPoolExecutor, name: str, seed: int) -> None:
        self.name = name
        self._client = client
        self._sessions: list[Session] = []
        self._games: list[Future[Game]] = []
        chance = random.Random(seed)
        for secret in NUMBERS:
            sessions = client.create(group=f"{name}-secret-{secret}", n=GAMES_A_SECRET, labels={"step": name})
            self._sessions += sessions
            for session in sessions:
                self._games.append(
                    pool.submit(self._play, session, secret, random.Random(chance.getrandbits(64)))
                )

    def _play(self, session: Session, secret: int, chance: random.Random) -> Game:
        with OpenAI(base_url=session.base_url, api_key="unused") as agents:
            game = play(agents, MODEL, secret, chance)
        self._client.reward(session, game.reward)
        self._client.seal(session)
        return game

    @property
    def over(self) -> int:
        """How many games are over."""
        return sum(game.done() for game in self._games)

    def rows(self) -> list[Row]:
        """Wait for all games; what is recorded of them, after which it is deleted."""
        for game in self._games:
            game.result()
        rows = self._client.rows(self._sessions)
        for secret in NUMBERS:
            self._client.delete(group=f"{self.name}-secret-{secret}")
        return rows


def greedy(url: str) -> tuple[float, int]:
    """The mean reward of a game for each secret without chance, and how many are won."""
    with OpenAI(base_url=f"{url}/v1", api_key="unused") as agents, ThreadPoolExecutor(len(NUMBERS)) as pool:
        games = list(
            pool.map(lambda secret: play(agents, MODEL, secret, random.Random(0), temperature=0.0), NUMBERS)
        )
    return fmean(game.reward for game in games), sum(game.won for game in games)


def train(url: str, source: str, scratch: Path, seed: int, steps: int) -> Run:
    """One run from the original weights."""
    started = time.monotonic()
    policy = Policy(source, lr=LEARNING_RATE)
    with Client(url) as client, ThreadPoolExecutor(len(NUMBERS) * GAMES_A_SECRET) as pool:
        client.weights(0, path=source)
        run = Run(seed=seed, greedy_before=greedy(url), rewards=[], checks=[])
        rollouts = Rollouts(client, pool, f"seed-{seed}-step-0", seed)
        for step in range(steps):
            rows = rollouts.rows()
            learned = policy.learn(rows, version=step)
            run.rewards.append(fmean(row["reward"] for row in rows))
            run.checks.append({"difference": learned.largest_difference, "ratios": learned.ratios})
            tell(seed, step, rows, learned, time.monotonic() - started)
            check(step, rows, learned)
            if step + 1 < steps:
                rollouts = Rollouts(client, pool, f"seed-{seed}-step-{step + 1}", 1000 * seed + step + 1)
            swap(client, policy, scratch, version=step + 1)
        run.greedy_after = greedy(url)
    run.seconds = time.monotonic() - started
    print(
        f"seed {seed}: sampled {run.rewards[0]:.2f} -> {fmean(run.rewards[-3:]):.2f} (mean of the last 3 steps); greedy "
        f"{run.greedy_before[0]:.2f} -> {run.greedy_after[0]:.2f}, {run.greedy_before[1]} -> {run.greedy_after[1]} "
        f"of {len(NUMBERS)} won; {run.seconds:.0f} s",
        flush=True,
    )
    return run


def swap(client: Client, policy: Policy, scratch: Path, *, version: int) -> None:
    """Give the server the new weights, whatever it is doing; they need no file once they are loaded."""
    folder = scratch / f"version-{version}"
    policy.network.save_pretrained(folder)
    client.weights(version, path=str(folder))
    shutil.rmtree(folder)


def tell(seed: int, step: int, rows: Sequence[Row], learned: Step, seconds: float) -> None:
    """A line for each step."""
    mixed = sum(len({version for version in row["versions"] if version is not None}) > 1 for row in rows)
    low, high = learned.ratios
    print(
        f"seed {seed} step {step:2}: reward {fmean(row['reward'] for row in rows):.3f}; {learned.trained_rows} of "
        f"{len(rows)} games teach; logprobs differ by at most {learned.largest_difference:.1e}, ratios {low:.5f} to "
        f"{high:.5f}; {mixed} games saw a swap ({learned.older_tokens} tokens of older weights); {seconds:.0f} s",
        flush=True,
    )


def check(step: int, rows: Sequence[Row], learned: Step) -> None:
    """Raise where the record is not what the trainer needs."""
    if len(rows) != len(NUMBERS) * GAMES_A_SECRET:
        raise SystemExit(
            f"step {step}: {len(rows)} rows of {len(NUMBERS) * GAMES_A_SECRET} games: one is wanted of each"
        )
    if learned.largest_difference > MOST_DIFFERENCE:
        raise SystemExit(
            f"step {step}: a recorded logprob is {learned.largest_difference:.2e} off, at most {MOST_DIFFERENCE} is allowed"
        )
    if step == 0 and max(abs(ratio - 1) for ratio in learned.ratios) > MOST_DIFFERENCE:
        raise SystemExit(
            f"the first step's importance ratios are {learned.ratios}, not 1 ± {MOST_DIFFERENCE}"
        )


@contextlib.contextmanager
def served(scratch: Path, threads: int) -> Iterator[str]:
    """`rolltap serve` in a process of its own; its address."""
    config = scratch / "rolltap.toml"
    config.write_text(
        f'[store]\nkind = "memory"\n[[models]]\nname = "{MODEL}"\n'
        f'backends = [{{ kind = "local", threads = {threads}, max_num_seqs = {len(NUMBERS) * GAMES_A_SECRET} }}]\n'
    )
    command = [Path(sys.executable).with_name("rolltap"), "serve", "--config", str(config), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            ready = server.stdout.readline()
            if not ready:
                raise SystemExit("rolltap did not start: its own words are above")
            yield ready.split()[-1]
        finally:
            server.terminate()
            server.wait()


def main(arguments: Sequence[str] | None = None) -> list[Run]:
    """Train with each seed, draw the rewards, and write down what was found."""
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(prog="train-demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="of the server, and of the trainer"
    )
    parser.add_argument("--plot", type=Path, default=here / "reward.png")
    parser.add_argument("--results", type=Path, help="a JSON file for all that was measured")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(asked.threads)
    logging.disable_progress_bar()
    source = asyncio.run(locate(LocalOptions()))
    runs: list[Run] = []
    with (
        tempfile.TemporaryDirectory(prefix="train-demo-") as scratch,
        served(Path(scratch), asked.threads) as url,
    ):
        for seed in asked.seeds:
            runs.append(train(url, source, Path(scratch), seed, asked.steps))
            draw(runs, asked.plot)
    if asked.results is not None:
        asked.results.write_text(json.dumps([run.as_json() for run in runs], indent=2) + "\n")
    print(f"{asked.plot} shows it; {sum(run.seconds for run in runs):.0f} s in all")
    return runs


if __name__ == "__main__":
    main()
