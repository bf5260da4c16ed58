"""What must reach the record whatever happens meanwhile, and what of it must be reachable."""

import asyncio
import base64

import aiohttp
import pytest

from rolltap import hookimpl
from rolltap.testing import Reply, ScriptedTokenBackend
from rolltap_plugins.stores.memory import MemoryStore

USER = {"role": "user", "content": "a"}
CHAT = {"messages": [USER]}


class SlowStore(MemoryStore):
    """Takes its time to store nodes, as a disk or a network may."""

    def __init__(self) -> None:
        super().__init__()
        self.storing = asyncio.Event()
        self.go_on = asyncio.Event()

    async def append(self, session, entry):
        if type(entry).__name__ == "NodesRecorded":
            self.storing.set()
            await self.go_on.wait()
        return await super().append(session, entry)

    @hookimpl
    def create_store(self, kind, options):
        return self if kind == "slow" else None


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_its_call_is_stored_leaves_it_whole(
    rolltap_serve, rolltap_tokenizer, stream
):
    backend = ScriptedTokenBackend(rolltap_tokenizer, ["One.", "Two."])
    store = SlowStore()
    server = await rolltap_serve(backend, plugins=[store], config={"store": {"kind": "slow"}})
    session = await server.session()
    call = asyncio.ensure_future(
        server.http.post(f"/{session}/v1/chat/completions", json={**CHAT, "stream": stream})
    )
    await store.storing.wait()
    if stream:
        (await call).close()
    else:
        call.cancel()
    await asyncio.sleep(0.1)
    store.go_on.set()
    async with asyncio.timeout(5):
        while not (nodes := await server.nodes(session)) or nodes[0]["metadata"]["delivery"] == "delivered":
            await asyncio.sleep(0.02)
    (node,) = nodes
    (call,) = backend.calls
    assert node["tokens"] == call.prompt_ids + call.output_ids[0]
    assert node["metadata"]["trainable"]
    assert (
        len([entry for _, entry in await store.read(session) if type(entry).__name__ == "NodesRecorded"]) == 1
    )
