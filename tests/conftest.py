"""What every test may use: the fixtures that plugin authors use too, and real clients."""

import logging
from collections.abc import AsyncIterator

import openai
import pytest

pytest_plugins = ["rolltap.testing", "browsing"]


@pytest.fixture
async def openai_clients() -> AsyncIterator[list[openai.AsyncOpenAI]]:
    """Clients that are closed when the test ends."""
    clients: list[openai.AsyncOpenAI] = []
    yield clients
    for client in clients:
        await client.close()


@pytest.fixture
def openai_client(openai_clients):
    """A function that makes a real openai client for a session of a server (or for none)."""

    def make(server, session: str = "", *, api_key: str = "unused", **options) -> openai.AsyncOpenAI:
        base = f"{server.url}/{session}/v1" if session else f"{server.url}/v1"
        client = openai.AsyncOpenAI(base_url=base, api_key=api_key, max_retries=0, **options)
        openai_clients.append(client)
        return client

    return make


@pytest.fixture(autouse=True)
def log_records():
    """A command that runs in this process changes how log records are made; the next test must not see it."""
    factory = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(factory)
