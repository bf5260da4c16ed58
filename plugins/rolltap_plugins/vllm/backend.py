"""The vLLM backend: ids in, ids and logprobs out."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import aiohttp
import orjson

from rolltap import Sampling, TokenBackend, TokenDelta, TokenRequest, UpstreamError
from rolltap_plugins.vllm.client import PATHS, Client, Served, event_error
from rolltap_plugins.vllm.engine import Engine
from rolltap_plugins.vllm.options import Options
from rolltap_plugins.vllm.parameters import COMPLETIONS_ONLY, PARAMETERS, Endpoint, applied, request_body
from rolltap_plugins.vllm.replies import ReplyReader
from rolltap_plugins.vllm.sse import events

_PROBE_IDS = [0]
"""A prompt that any vocabulary has."""

_PROBE = TokenRequest(prompt_ids=tuple(_PROBE_IDS), sampling=Sampling(max_tokens=1))


class VLLMBackend(TokenBackend):
    """Generates with a vLLM server, over its token endpoint where it has one, else over `/v1/completions`."""

    parameters = PARAMETERS
    ends_explicitly = True

    def __init__(self, options: Options, model: str) -> None:
        self._options = options
        self._engine = Engine(options, model) if options.launch else None
        self.url = self._engine.url if self._engine else options.url
        self._client = Client(self.url, options)
        if options.launch:
            self.tokenizer = options.launch_arg("--tokenizer") or options.launch

    async def start(self) -> None:
        """Open the client. A launched engine is started and waited for; one at a `url` need not be there yet."""
        await self._client.start()
        if self._engine:
            try:
                await self._engine.start(self._client.healthy)
            except BaseException:
                await self._client.close()
                raise

    async def close(self) -> None:
        """End a launched engine and close all connections, upon which a server aborts what still runs."""
        if self._engine:
            await self._engine.stop()
        await self._client.close()

    async def check(self) -> dict[str, Any]:
        """Ask the server what it serves and have it generate one token. Raises where it can't be used."""
        await self._ready()
        self._client.forget()
        served = await self._client.served()
        version = await self._client.get("/version", missing={})
        echo = logprobs = False
        async for delta in self.generate(_PROBE):
            echo = echo or delta.prompt_token_ids == _PROBE_IDS
            logprobs = logprobs or (bool(delta.token_ids) and delta.logprobs is not None)
        return {
            "engine": f"vLLM {version.get('version', 'of unknown version')}",
            "model": served.model,
            "max_model_len": served.max_model_len,
            "endpoint": PATHS[served.endpoint],
            "echo": echo,
            "logprobs": logprobs,
            "logprobs_mode": served.logprobs_mode,
        }

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenDelta, None]:
        """See `TokenBackend.generate`. Raises `UpstreamError`, `BadRequest` or aiohttp's errors."""
        prompt_ids, sampling = list(request.prompt_ids), request.sampling
        served = await self._served()
        began = False
        try:
            async with aclosing(self._stream(served, prompt_ids, sampling)) as deltas:
                async for delta in deltas:
                    began = True
                    yield delta
        except (UpstreamError, aiohttp.ClientError) as error:
            now_served = await self._instead(error, served)
            if began or now_served is None:
                raise
        else:
            return
        async with aclosing(self._stream(now_served, prompt_ids, sampling)) as deltas:
            async for delta in deltas:
                yield delta

    async def _ready(self) -> None:
        if self._engine:
            await self._engine.wait_ready()

    async def _served(self) -> Served:
        """What the server serves. One of our own is waited for, also where its death has not been noticed yet."""
        await self._ready()
        try:
            return await self._client.served()
        except aiohttp.ClientConnectorError:
            if self._engine is None:
                raise
            self._engine.doubt()
            await self._engine.wait_ready()
            return await self._client.served()

    async def _instead(self, error: UpstreamError | aiohttp.ClientError, served: Served) -> Served | None:
        """What may be asked in place of a server that failed; None where its failure is the answer."""
        status = error.status if isinstance(error, UpstreamError) else None
        if status in {403, 404}:
            # No such endpoint or model: the server may have been replaced since it was asked what it serves.
            self._client.forget()
            now_served = await self._client.served()
            return now_served if now_served != served else None
        if status is None or status >= 500:
            self._client.forget()
            if self._engine:
                self._engine.doubt()
        if self._engine and isinstance(error, aiohttp.ClientConnectorError):
            return await self._served()  # nothing was sent, so the next engine can have it
        return None

    async def _stream(
        self, served: Served, prompt_ids: list[int], sampling: Sampling
    ) -> AsyncGenerator[TokenDelta, None]:
        endpoint = self._endpoint(served, sampling)
        body = request_body(endpoint, served.model, prompt_ids, sampling, served.max_model_len)
        settings: dict[str, Any] | None = applied(endpoint, body)
        reader = ReplyReader(endpoint, sampling, served.logprobs_mode)
        weights = await self._weights(served) if endpoint == "completions" else None
        async with self._client.stream(PATHS[endpoint], body) as content, aclosing(events(content)) as stream:
            async for data in stream:
                if data == b"[DONE]":
                    continue  # read on to the end, so that the connection can be used again
                for delta in reader.deltas(self._event(data)):
                    delta.sampling, settings = settings, None
                    if weights and delta.finish_reason:
                        delta.weight_versions = weights
                    yield delta
        if not reader.finished:
            raise UpstreamError(f"the reply of {self.url} ended before all of its choices did")

    def _endpoint(self, served: Served, sampling: Sampling) -> Endpoint:
        """The endpoint for this request: the chosen one, unless only the other has a parameter it sets."""
        if self._options.endpoint == "auto" and not COMPLETIONS_ONLY.isdisjoint(sampling.extra):
            return "completions"
        return served.endpoint

    def _event(self, data: bytes) -> dict[str, Any]:
        try:
            event: dict[str, Any] = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise UpstreamError(f"{self.url} sent an event that is not JSON: {data[:200]!r}") from error
        if "error" in event:
            raise event_error(event, self.url)
        return event

    async def _weights(self, served: Served) -> list[Any] | None:
        """The version of the weights as the request sets out; `/v1/completions` does not report it itself."""
        if not served.tells_weights:
            return None
        info = await self._client.get("/weight_info")
        return [{"version": info["weight_version"], "at": "dispatch"}]
