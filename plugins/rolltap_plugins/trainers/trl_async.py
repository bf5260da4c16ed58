"""TRL's AsyncGRPOTrainer: a rollout worker whose samples are what rolltap has recorded.

Give it as `AsyncGRPOTrainer(rollout_worker=RolloutWorker(...))`. A rollout of several sequences makes a sample of each.
"""

import asyncio
import queue
import time
from collections.abc import Iterable
from itertools import cycle
from threading import Event, Thread
from typing import Any

import numpy as np
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from rolltap.client import AsyncClient, Client
from rolltap_plugins.exports.sequences import TRLAsync
from rolltap_plugins.trainers.playing import Agent, group_advantages, play_group


class RolloutWorker:
    """Plays the prompts over and over, a group of rollouts each, several groups side by side."""

    def __init__(
        self,
        url: str,
        agent: Agent,
        prompts: Iterable[Any],
        *,
        api_key: str | None = None,
        num_generations: int = 8,
        groups: int = 4,
        queue_maxsize: int = 1024,
        **settings: Any,
    ) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(queue_maxsize)
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self.model_version = 0
        self._url, self._api_key = url, api_key
        self._agent, self._tasks, self._settings = agent, enumerate(cycle(prompts)), settings
        self._n, self._groups = num_generations, groups
        self._stopping = Event()
        self._error: BaseException | None = None
        self._heard = time.monotonic()
        self._thread = Thread(target=self._work, name="rolltap-rollouts", daemon=True)

    def start(self) -> None:
        """Begin; the trainer calls it when it has sent the first weights."""
        self._heard = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """End; rollouts that are being played are left as they are."""
        self._stopping.set()
        self._thread.join()

    def update_model_version(self, model_version: int) -> None:
        """The trainer has sent new weights: what is generated from now on is of this version."""
        self.model_version = model_version
        with Client(self._url, self._api_key) as client:
            client.weights(model_version)

    def check_health(self, stale_after_s: float) -> None:
        """Raise where the worker has failed, or has made nothing for so long."""
        if self._error is not None:
            raise RuntimeError(f"rolltap's rollout worker has failed: {self._error}") from self._error
        if time.monotonic() - self._heard > stale_after_s:
            raise RuntimeError(f"rolltap's rollout worker has made nothing for {stale_after_s:g} s")

    def _work(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # noqa: BLE001 - the trainer is told by check_health
            self._error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error

    async def _run(self) -> None:
        async with AsyncClient(self._url, self._api_key) as client, asyncio.TaskGroup() as tasks:
            workers = [tasks.create_task(self._play(client)) for _ in range(self._groups)]
            while not self._stopping.is_set():  # noqa: ASYNC110 - set by another thread
                await asyncio.sleep(0.05)
            for worker in workers:
                worker.cancel()

    async def _play(self, client: AsyncClient) -> None:
        for number, prompt in self._tasks:
            version, group = self.model_version, f"trl-{id(self):x}-{number}"
            rewards = await play_group(client, self._agent, prompt, n=self._n, group=group, **self._settings)
            advantages = group_advantages(rewards)
            for row in await client.rows(list(rewards), format=TRLAsync.name):
                advantage = advantages[row.pop("rollout_id")]
                sample = RolloutSample(
                    prompt, [], *map(np.asarray, row.values()), advantage, version, number, {}
                )
                while self.rollout_buffer.full():
                    self._heard = time.monotonic()
                    await asyncio.sleep(0.05)
                self.rollout_buffer.put_nowait(sample)
                self._heard = time.monotonic()
