"""Atropos' API server, started from atroposlib, between rolltap and a trainer: `python with_atropos.py URL TOKENIZER OUT`.

Writes the batch that the trainer gets.
"""

import asyncio
import json
import socket
import sys
from pathlib import Path

import aiohttp
import uvicorn
from atroposlib.api.server import app
from playing import QUESTION, agent

from rolltap.client import AsyncClient
from rolltap_plugins.trainers.atropos import AtroposEnvironment
from rolltap_plugins.trainers.playing import play_group

url, _, out = sys.argv[1:]
TRAINER = {
    "wandb_group": "g",
    "wandb_project": "p",
    "batch_size": 2,
    "max_token_len": 512,
    "checkpoint_dir": "",
    "save_checkpoint_interval": 0,
    "starting_step": 0,
    "num_steps": 1,
}


async def main():
    """One group, there and back."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    serving = asyncio.create_task(server.serve([listening]))
    atropos = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        async with (
            AsyncClient(url) as client,
            aiohttp.ClientSession(atropos) as trainer,
            AtroposEnvironment(atropos, client, name="talk", group_size=2) as environment,
        ):
            registering = asyncio.create_task(environment.register(60))
            await asyncio.sleep(1.5)
            assert not registering.done(), "Atropos takes no environment before there is a trainer"
            await (await trainer.post("/register", json=TRAINER)).json()
            await (await trainer.get("/batch")).json()
            await registering
            await environment.send(await play_group(client, agent, QUESTION, n=2, group="talk-1"))
            return (await (await trainer.get("/batch")).json())["batch"]
    finally:
        server.should_exit = True
        await serving


Path(out).write_text(json.dumps(asyncio.run(main())))
