"""Atropos: an environment whose groups are rolltap's. `run-api` and a trainer of Atropos' stay as they are.

Example::

    async with AsyncClient("http://127.0.0.1:9100") as client:
        async with AtroposEnvironment(
            "http://127.0.0.1:8000", client, name="game", group_size=8
        ) as environment:
            await environment.register()
            await environment.send(await play_group(client, agent, task, n=8, group="task-1"))
"""

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from rolltap.client import AsyncClient, SessionLike
from rolltap_plugins.exports.groups import Atropos

_POLL_S = 1.0


class AtroposEnvironment:
    """One registration at Atropos' API server."""

    def __init__(
        self,
        url: str,
        client: AsyncClient,
        *,
        name: str,
        group_size: int,
        max_token_length: int = 32_768,
        weight: float = 1.0,
        min_batch_allocation: float | None = None,
    ) -> None:
        self._url, self._client = url.rstrip("/"), client
        self._settings = {
            "max_token_length": max_token_length,
            "desired_name": name,
            "weight": weight,
            "group_size": group_size,
            "min_batch_allocation": min_batch_allocation,
        }
        self._http = aiohttp.ClientSession()
        self.registration: dict[str, Any] = {}
        """What Atropos answered: `env_id`, `wandb_name`, `starting_step` and the like."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.registration:
            await self._post("/disconnect-env", {"env_id": self.registration["env_id"]})
        await self._http.close()

    async def register(self, timeout_s: float = 600.0) -> dict[str, Any]:
        """Register, and wait until a trainer has. Raises `TimeoutError` where none does."""
        async with asyncio.timeout(timeout_s):
            while True:
                reply = await self._post("/register-env", self._settings)
                if reply["status"] == "success":
                    break
                await asyncio.sleep(_POLL_S)
        self.registration = reply
        return reply

    async def send(self, *groups: Iterable[SessionLike]) -> None:
        """Send groups of sealed and rewarded sessions, each leaf a sequence, all at once.

        A group of more or fewer sequences than `group_size` is kept by Atropos until others fill it up.
        """
        data = []
        for sessions in groups:
            rows = await self._client.rows([*sessions], format=Atropos.name)
            if rows:
                data.append({**Atropos().collect(rows), "env_id": self.registration["env_id"]})
        if data:
            await self._post("/scored_data_list", data)

    async def _post(self, path: str, body: Any) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        async with self._http.post(self._url + path, data=orjson.dumps(body), headers=headers) as response:
            if response.status >= 400:
                raise RuntimeError(f"{self._url}{path} answered {response.status}: {await response.text()}")
            reply: dict[str, Any] = await response.json()
            return reply
