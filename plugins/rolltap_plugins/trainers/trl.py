"""TRL's GRPOTrainer: a `rollout_func` that lets agents play through rolltap.

Example::

    trainer = GRPOTrainer(
        model, reward_funcs=recorded_reward, rollout_func=rollout_func("http://127.0.0.1:9100", agent), ...
    )
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from rolltap.client import AsyncClient
from rolltap_plugins.exports.responses import TRL
from rolltap_plugins.trainers.playing import Agent, play

Row = dict[str, Any]


class NotOneRow(ValueError):
    """A rollout has not made the one sequence that GRPOTrainer takes for a prompt."""


def only_row(rows: Sequence[Row]) -> Row:
    """The row of a rollout that has one. Raises `NotOneRow`."""
    if len(rows) != 1:
        raise NotOneRow(
            f"a rollout has {len(rows)} sequences to train on, and GRPOTrainer takes one for each prompt: choose with "
            "rollout_func(choose=…), or take all of them with AsyncGRPOTrainer and rolltap_plugins.trainers.trl_async"
        )
    return rows[0]


def rollout_func(
    url: str,
    agent: Agent,
    *,
    api_key: str | None = None,
    choose: Callable[[Sequence[Row]], Row] = only_row,
    lineage: str = "",
    **settings: Any,
) -> Callable[[list[Any], Any], dict[str, Any]]:
    """What GRPOTrainer takes as `rollout_func`: one session a prompt, played side by side.

    :param url: the server's address.
    :param agent: plays a prompt, and returns the reward or None.
    :param choose: picks the row to train on where a rollout has several.
    :param lineage: train only these trees, such as "main".
    :param settings: of the sessions, such as `sampling`.
    """

    async def rollouts(prompts: list[Any]) -> dict[str, Any]:
        async with AsyncClient(url, api_key) as client:
            sessions = await client.create(group=f"trl-{uuid4().hex}", n=len(prompts), **settings)
            await asyncio.gather(*map(lambda *each: play(client, agent, *each), prompts, sessions))
            found = [await client.rows(each, format=TRL.name, lineage=lineage) for each in sessions]
            return TRL().collect(map(choose, found))

    def run(prompts: list[Any], trainer: Any) -> dict[str, Any]:  # noqa: ARG001 - TRL gives it
        return asyncio.run(rollouts(prompts))

    return run


def recorded_reward(completions: list[Any], *, reward: list[float | None], **_: Any) -> list[float | None]:  # noqa: ARG001
    """A reward function for GRPOTrainer: what the agents returned."""
    return reward
