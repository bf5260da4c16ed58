"""A group of rollouts of one task, by any agent: what every trainer's hook begins with."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from statistics import fmean, pstdev
from typing import Any

from rolltap.client import AsyncClient, Session

Agent = Callable[[Session, Any], Awaitable[float | None] | float | None]
"""Plays one task: it is pointed at the session's addresses, and returns its reward (None: not known).

A plain function runs in a thread of its own.
"""


async def play(client: AsyncClient, agent: Agent, task: Any, session: Session) -> float | None:
    """Let an agent play a task, note its reward, and seal the session; the reward."""
    played = (
        agent(session, task)
        if inspect.iscoroutinefunction(agent)
        else await asyncio.to_thread(agent, session, task)
    )
    reward: float | None = await played if inspect.isawaitable(played) else played
    if reward is not None:
        await client.reward(session, reward)
    await client.seal(session)
    return reward


async def play_group(
    client: AsyncClient, agent: Agent, task: Any, *, n: int, group: str, **settings: Any
) -> dict[Session, float | None]:
    """`n` rollouts of one task, side by side: their sessions, sealed, and the reward of each."""
    sessions = await client.create(group=group, n=n, **settings)
    rewards = await asyncio.gather(*(play(client, agent, task, session) for session in sessions))
    return dict(zip(sessions, rewards, strict=True))


def group_advantages(rewards: Mapping[Session, float | None]) -> dict[str, float]:
    """Each session's, by its id: how far its reward stands from the group's mean, in standard deviations.

    One without a reward stands outside the group, and gets 0.
    """
    known = [reward for reward in rewards.values() if reward is not None]
    mean, spread = (fmean(known), pstdev(known)) if known else (0.0, 0.0)
    return {
        session.uuid: 0.0 if reward is None else (reward - mean) / (spread + 1e-8)
        for session, reward in rewards.items()
    }
