"""The SGLang backend: ids in, ids and logprobs out, over SGLang's own `/generate`."""

import asyncio
import os
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, TypeVar

import aiohttp
from msgspec import Struct

from rolltap import PauseMode, Sampling, TokenDelta, TokenRequest, UpstreamError
from rolltap_plugins.sglang.options import ORIGINAL_LOGPROBS, Options
from rolltap_plugins.sglang.parameters import PARAMETERS, applied, request_body
from rolltap_plugins.sglang.replies import ReplyReader
from rolltap_plugins.upstream.backend import EngineBackend, as_version, engine_request_id
from rolltap_plugins.upstream.engine import Program
from rolltap_plugins.upstream.http import NO_SUCH_PATH, Upstream
from rolltap_plugins.upstream.sse import EventStream

SGLANG = Program(
    name="SGLang",
    package="sglang",
    install="pip install sglang",
    arguments=lambda model, _: ["-m", "sglang.launch_server", "--model-path", model],
    environment={ORIGINAL_LOGPROBS: "1"},
)

_PROBE_IDS = [0, 1]
"""A prompt that any vocabulary has."""

_HEALTH_S = 30.0
"""SGLang answers only after its engine has generated a token, or something else."""
_ABORT_S = 5.0
_UPDATE_S = 3600.0
"""How long a pause or an update of the weights may take."""

_PAUSES: dict[PauseMode, str] = {"abort": "abort", "keep": "in_place", "wait": "in_place"}


_Info = TypeVar("_Info")


class Served(Struct, frozen=True, kw_only=True):
    """What a server said about itself when it was asked."""

    model: str
    max_model_len: int | None


class _Card(Struct):
    id: str = ""
    max_model_len: int | None = None


class _Cards(Struct):
    data: list[_Card] | None = None


class _ModelInfo(Struct):
    model_path: str = ""
    weight_version: str | int | None = None


class _ServerInfo(Struct):
    version: str = "of unknown version"


class _Updated(Struct):
    success: bool = True
    message: str = ""


class SGLangBackend(EngineBackend[Served]):
    """Generates with an SGLang server."""

    parameters = PARAMETERS

    def __init__(self, options: Options, model: str) -> None:
        super().__init__(SGLANG, options, model)
        self._options = options
        self._admin = Upstream(
            self.url,
            name=self._server.name,
            key=os.environ.get(options.admin_key_env or options.api_key_env),
            connect_timeout_s=options.connect_timeout_s,
            timeout_s=_UPDATE_S,
        )
        self._paused = False
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._places_versions = False
        self._aborts: set[asyncio.Task[int | None]] = set()
        if options.launch:
            self.tokenizer = options.launch_arg("--tokenizer-path") or options.launch

    async def start(self) -> None:
        """Open the client. A launched engine is started and waited for; one at a `url` need not be there yet."""
        await self._admin.start()
        try:
            await super().start()
        except BaseException:
            await self._admin.close()
            raise

    async def close(self) -> None:
        """End a launched engine and close all connections."""
        if self._aborts:
            await asyncio.wait(self._aborts, timeout=_ABORT_S)
        await super().close()
        await self._admin.close()

    async def check(self) -> dict[str, Any]:
        """Ask the server what it serves and have it generate one token. Raises where it can't be used."""
        served = await self.served_anew()
        info = await self._ask_either("/server_info", "/get_server_info", _ServerInfo)
        proof, logprobs = "", False
        request = TokenRequest(
            prompt_ids=tuple(_PROBE_IDS), sampling=Sampling(max_tokens=1, ignore_eos=True), stream=False
        )
        async with aclosing(self.ask(served, request, verify=True)) as deltas:
            async for delta in deltas:
                if delta.prompt_token_ids == _PROBE_IDS:
                    proof = delta.prompt_proof
                logprobs = logprobs or (bool(delta.token_ids) and delta.logprobs is not None)
        return {
            "engine": f"SGLang {info.version}",
            "model": served.model,
            "max_model_len": served.max_model_len,
            "endpoint": "/generate",
            "echo": bool(proof),
            "prompt_proof": proof,
            "verify_share": self._options.verify_share,
            "logprobs": logprobs,
            "logprobs_mode": self._options.served_logprobs,
        }

    async def healthy(self) -> bool:
        """Whether the server answers and its engine generates."""
        return await self._server.status("/health_generate", timeout_s=_HEALTH_S) == 200

    async def ask_served(self) -> Served:
        """Ask for the model and the length."""
        listed = await self._server.ask("/v1/models", _Cards, missing=_Cards())
        cards = listed.data or [_Card()]
        named = self._options.model
        card = next((card for card in cards if card.id == named), cards[0])
        model = named or card.id or (await self._model_info()).model_path
        return Served(model=model, max_model_len=card.max_model_len)

    async def ask(
        self, served: Served, request: TokenRequest, *, verify: bool | None = None
    ) -> AsyncGenerator[TokenDelta, None]:
        """One request: a stream of events, or where nobody streams one reply. Leaving early aborts it in the engine."""
        if verify is None:
            verify = random.random() < self._options.verify_share  # noqa: S311 - no secret
        rid = engine_request_id(request)
        body = request_body(request, served.max_model_len, rid=rid, verify=verify)
        settings: dict[str, Any] | None = applied(body)
        before = None if self._places_versions else await self.weight_version()
        reader = ReplyReader(request, self._options.served_logprobs, self._server, before)
        self._running += 1
        self._idle.clear()
        answered = False
        try:
            async with aclosing(self._deltas(body, reader)) as deltas:
                async for delta in deltas:
                    delta.sampling, settings = settings, None
                    yield delta
            answered = True
        except (UpstreamError, aiohttp.ClientError):
            answered = True  # it has failed by itself
            raise
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()
            if not answered and "rid" in body:
                self._abort(rid)
        self._places_versions = reader.placed_versions
        if not reader.finished:
            raise UpstreamError(f"the reply of {self._server.name} ended before all of its choices did")

    async def _deltas(self, body: dict[str, Any], reader: ReplyReader) -> AsyncGenerator[TokenDelta, None]:
        async with self._server.post("/generate", body) as response:
            if not body["stream"]:
                for delta in reader.whole(await self._server.whole(response)):
                    yield delta
                return
            if response.content_type != "text/event-stream":
                raise UpstreamError(
                    f"{self._server.name} answered with {response.content_type!r} in place of an event stream"
                )
            async with aclosing(EventStream(response.content).read()) as events:
                async for together in events:
                    for data in together:
                        yield reader.event(data)

    def _abort(self, rid: str) -> None:
        """Have the engine end a request at once; it notices by itself only after seconds that nobody listens."""
        task = asyncio.create_task(
            self._admin.status("/abort_request", body={"rid": rid}, timeout_s=_ABORT_S)
        )
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    # ---- weights

    async def pause(self, mode: PauseMode) -> None:
        """See `Backend.pause`. SGLang can't wait by itself: with "wait" this backend's own calls are waited for."""
        if mode == "wait":
            await self._idle.wait()
        await self._admin.ask("/pause_generation", dict, body={"mode": _PAUSES[mode]})
        self._paused = True

    async def resume(self) -> None:
        """See `Backend.resume`."""
        await self._admin.ask("/continue_generation", dict, body={})
        self._paused = False

    async def is_paused(self) -> bool:
        """See `Backend.is_paused`. SGLang does not tell; one that was paused by others holds requests back itself."""
        return self._paused

    async def set_weights(self, version: int | str, path: str | None = None) -> None:
        """See `Backend.set_weights`. What runs goes on: to end it is what `pause` is for."""
        if path is None:
            body: dict[str, Any] = {"new_version": str(version), "abort_all_requests": False}
            await self._admin.ask("/update_weight_version", _Updated, body=body, missing=_Updated())
            return
        body = {"model_path": path, "weight_version": str(version)}
        updated = await self._admin.ask("/update_weights_from_disk", _Updated, body=body)
        if not updated.success:
            raise UpstreamError(f"{self._server.name} did not load {path}: {updated.message}", status=500)

    async def weight_version(self) -> int | str | None:
        """See `Backend.weight_version`."""
        return as_version((await self._model_info()).weight_version)

    async def _model_info(self) -> _ModelInfo:
        return await self._ask_either("/model_info", "/get_model_info", _ModelInfo)

    async def _ask_either(self, path: str, older: str, shape: type[_Info]) -> _Info:
        """What the server says of itself, at the path's older name where it has none of this name."""
        try:
            return await self._server.ask(path, shape)
        except UpstreamError as error:
            if error.status not in NO_SUCH_PATH:
                raise
        return await self._server.ask(older, shape)
