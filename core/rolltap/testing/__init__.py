"""What plugin authors test with: `pytest_plugins = ["rolltap.testing"]` brings the fixtures.

Real parts: a real server on a real socket, a real tokenizer. Only the model is scripted.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rolltap.testing.backends import (
    Reply,
    ScriptedChatBackend,
    ScriptedTokenBackend,
    TokenCall,
    scripted_logprobs,
)
from rolltap.testing.parsing import assert_every_cut
from rolltap.testing.records import assert_exact
from rolltap.testing.server import MODEL, RunningServer, Serve, serve
from rolltap.testing.stores import (
    DurableStoreConformance,
    SharedStoreConformance,
    StoreConformance,
    play_store,
    store_entry,
)
from rolltap.testing.tokenizers import tiny_tokenizer

__all__ = [
    "MODEL",
    "DurableStoreConformance",
    "Reply",
    "RunningServer",
    "ScriptedChatBackend",
    "ScriptedTokenBackend",
    "Serve",
    "SharedStoreConformance",
    "StoreConformance",
    "TokenCall",
    "assert_every_cut",
    "assert_exact",
    "play_store",
    "rolltap_serve",
    "rolltap_tokenizer",
    "scripted_logprobs",
    "serve",
    "store_entry",
    "tiny_tokenizer",
]


@pytest.fixture(scope="session")
def rolltap_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny real tokenizer with a ChatML template."""
    folder: Path = tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return str(folder)


@pytest_asyncio.fixture
async def rolltap_serve() -> AsyncIterator[Serve]:
    """A function that serves backends until the test ends.

    `server = await rolltap_serve(backend, …)` takes what `rolltap.testing.serve` takes; `server` is a `RunningServer`.
    """
    async with AsyncExitStack() as stack:

        async def start(*args: Any, **kwargs: Any) -> RunningServer:
            return await stack.enter_async_context(serve(*args, **kwargs))

        yield start
