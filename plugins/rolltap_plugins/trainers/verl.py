"""verl's AgentLoop: agents play through rolltap, and each leaf is one `AgentLoopOutput`.

Name it in the file that `actor_rollout_ref.rollout.agent.agent_loop_config_path` points at::

    - name: rolltap
      _target_: rolltap_plugins.trainers.verl.RolltapAgentLoop
      url: http://127.0.0.1:9100
      agent: my_package.my_agent:play
"""

from pkgutil import resolve_name
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from rolltap.client import AsyncClient
from rolltap_plugins.exports.responses import Verl
from rolltap_plugins.trainers.playing import play

_PINNED = ("temperature", "top_p", "top_k", "repetition_penalty")
"""What verl samples with holds for the agent's calls, whatever the agent asks for."""


class RolltapAgentLoop(AgentLoopBase):  # type: ignore[misc]  # verl is not installed where this is checked
    """One rollout a sample. The agent is called with the session and the dataset's row."""

    def __init__(
        self,
        *args: Any,
        url: str,
        agent: str,
        api_key: str | None = None,
        lineage: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._agent = resolve_name(agent)
        self._url, self._api_key, self._lineage = url, api_key, lineage

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """One output, or a list where the rollout has several leaves, which verl's v1 trainer takes."""
        sampling = {name: sampling_params[name] for name in _PINNED if name in sampling_params}
        async with AsyncClient(self._url, self._api_key) as client:
            group = str(row.get("uid") or uuid4().hex)
            (session,) = await client.create(group=group, sampling=sampling)
            await play(client, self._agent, row, session)
            rows = await client.rows(session, format=Verl.name, lineage=self._lineage)
        if not rows:
            raise ValueError(
                f"the session {session.uuid} has no token to train on: the agent made no exact call"
            )
        outputs = [AgentLoopOutput(**each) for each in rows]
        return outputs[0] if len(outputs) == 1 else outputs
