"""The backend that the core asks: requests checked on the event loop, run by the engine's thread."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from rolltap import (
    SAMPLING_PARAMETERS,
    BadRequest,
    PauseMode,
    TokenBackend,
    TokenDelta,
    TokenRequest,
    UpstreamError,
)
from rolltap_plugins.local.checkpoints import read_checkpoint
from rolltap_plugins.local.engine import Engine
from rolltap_plugins.local.model import Model
from rolltap_plugins.local.options import LocalOptions
from rolltap_plugins.local.requests import Request
from rolltap_plugins.local.sampling import settle
from rolltap_plugins.local.weights import locate


class LocalBackend(TokenBackend):
    """A causal language model in this process.

    Stop strings are the core's business: it reads the text and closes the generator.
    """

    parameters = SAMPLING_PARAMETERS - {"response_format"}
    ends_explicitly = True

    def __init__(self, options: LocalOptions) -> None:
        self.options = options
        self._source = ""
        self._model: Model | None = None
        self._engine: Engine | None = None
        self._swapping = asyncio.Lock()

    async def start(self) -> None:
        """Convert the embedded model where that has not been done, load the model and start its thread.

        Raises `ConfigError` that says what is missing or wrong.
        """
        self._source = self.tokenizer = await locate(self.options)
        self._model = await asyncio.to_thread(Model.load, self._source, self.options)
        self._engine = Engine(
            self._model,
            threads=self.options.threads or _spare_cores(),
            max_num_seqs=self.options.max_num_seqs,
            prefix_cache_bytes=self.options.prefix_cache_mb * 2**20,
        )

    async def close(self) -> None:
        """End the thread, failing what runs, and let the model go."""
        engine, self._engine, self._model = self._engine, None, None
        if engine is not None:
            await asyncio.to_thread(engine.close)

    async def check(self) -> dict[str, Any]:
        """The model's source, limits and defaults, its weights' version, and how many sequences run."""
        model, engine = self._ready()
        now = {"weight_version": engine.version, "running": engine.running}
        return {"model": self._source} | model.facts() | now

    async def pause(self, mode: PauseMode) -> None:
        """See `TokenBackend.pause`: it stops between two steps, and this returns when it has.

        "abort" ends what has tokens; requests that have none yet wait. "wait" returns when all that run have ended.
        """
        await asyncio.wrap_future(self._ready()[1].pause(mode))

    async def resume(self) -> None:
        """See `TokenBackend.resume`."""
        await asyncio.wrap_future(self._ready()[1].resume())

    async def is_paused(self) -> bool:
        """See `TokenBackend.is_paused`."""
        return self._ready()[1].paused is not None

    async def set_weights(self, version: int | str, path: str | None = None) -> None:
        """Serve other weights from the next step on: a safetensors file, or a folder as `save_pretrained` writes it.

        No call ends by it. A choice that has tokens goes on with the new weights behind keys and values of the old,
        which only it uses; all that begins later, and every prompt that was not through, is of the new ones alone.
        Raises `BadRequest` where the weights do not fit; the old ones then go on. Takes as much memory again as the
        weights have, until the old ones are let go.
        """
        model, engine = self._ready()
        async with self._swapping:
            replacements = (
                None if path is None else await asyncio.to_thread(read_checkpoint, Path(path), model.network)
            )
            await asyncio.wrap_future(engine.set_weights(version, replacements))

    async def weight_version(self) -> int | str:
        """The version that was set last; 0 for the weights that it started with."""
        return self._ready()[1].version

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenDelta, None]:
        """See `TokenBackend.generate`: one delta a token (fewer where nobody reads them), logprobs raw.

        Raises `BadRequest` for a wrong prompt or parameter, and `UpstreamError` with status 400 and code
        `context_length_exceeded` for a prompt that leaves no room, 500 where the model's code fails, 503 where the
        backend is not running.
        """
        model, engine = self._ready()
        prompt_ids = list(request.prompt_ids)
        self._check_prompt(prompt_ids, model)
        settings = settle(
            request.sampling,
            room=model.context_length - len(prompt_ids),
            vocab_size=model.vocab_size,
            eos_ids=model.eos_ids,
            defaults=model.defaults,
        )
        if settings.n > self.options.max_num_seqs:
            raise BadRequest(
                f"n is {settings.n}; this backend's max_num_seqs is {self.options.max_num_seqs}", param="n"
            )
        running = Request(prompt_ids, settings, stream=request.stream, salt=request.cache_salt)
        engine.submit(running)
        try:
            while (event := await running.events.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            engine.leave(running)

    def _ready(self) -> tuple[Model, Engine]:
        if self._model is None or self._engine is None:
            raise UpstreamError("the local model is not running", status=503, code="engine_stopped")
        return self._model, self._engine

    def _check_prompt(self, ids: list[int], model: Model) -> None:
        if not ids:
            raise BadRequest(
                "the prompt is empty: the model needs at least one token to continue", param="prompt"
            )
        if len(ids) >= model.context_length:
            raise UpstreamError(
                f"the prompt has {len(ids)} tokens, the model's context {model.context_length}, of which at least "
                "one must be left for the output",
                status=400,
                code="context_length_exceeded",
            )
        if min(ids) < 0 or max(ids) >= model.vocab_size:
            stranger = next(token for token in ids if not 0 <= token < model.vocab_size)
            raise BadRequest(
                f"the prompt has the token id {stranger}; the model has ids 0 to {model.vocab_size - 1}",
                param="prompt",
            )


def _spare_cores() -> int:
    """All cores that this process may use but one, which is the event loop's.

    Not all of them: torch's threads wait for each other actively, and with as many threads as cores and anything
    else to do on the machine a step took five to ten times as long.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores - 1)
