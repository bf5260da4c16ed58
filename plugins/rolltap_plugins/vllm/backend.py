"""The vLLM backend: ids in, ids and logprobs out."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from msgspec import Struct

from rolltap import PauseMode, Sampling, TokenDelta, TokenRequest, Unsupported, UpstreamError
from rolltap_plugins.upstream.backend import EngineBackend, as_version
from rolltap_plugins.upstream.engine import Program
from rolltap_plugins.upstream.http import NO_SUCH_PATH
from rolltap_plugins.upstream.sse import EventStream
from rolltap_plugins.vllm.options import Options
from rolltap_plugins.vllm.parameters import COMPLETIONS_ONLY, PARAMETERS, Endpoint, applied, request_body
from rolltap_plugins.vllm.replies import ReplyReader, joined

PATHS: dict[Endpoint, str] = {"generate": "/inference/v1/generate", "completions": "/v1/completions"}
"""Where each endpoint is."""

_DEFAULT_LOGPROBS_MODE = "raw_logprobs"
"""vLLM's own default for `--logprobs-mode`."""

_PROBE_IDS = [0]
"""A prompt that any vocabulary has."""

_PROBE = TokenRequest(prompt_ids=tuple(_PROBE_IDS), sampling=Sampling(max_tokens=1), stream=False)

_HEALTH_S = 5.0
_PAUSE_S = 3600.0
"""How long a pause may take: with "wait" everything that runs is finished first."""


def _arguments(model: str, has_command: bool) -> list[str]:
    if has_command:
        return ["-m", "vllm.entrypoints.cli.main", "serve", model]
    return [
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        model,
    ]  # the command looks for a distribution


VLLM = Program(name="vLLM", package="vllm", install="pip install 'rolltap[vllm]'", arguments=_arguments)


class Served(Struct, frozen=True, kw_only=True):
    """What a server said about itself when it was asked."""

    model: str
    endpoint: Endpoint
    max_model_len: int | None
    """The longest sequence, in tokens; None where the server does not say."""
    logprobs_mode: str
    tells_weights: bool
    """Whether it tells the version of its weights at `/weight_info`: in vLLM's development mode."""


class _Card(Struct):
    id: str = ""
    max_model_len: int | None = None


class _Cards(Struct):
    data: list[_Card] | None = None


class _WeightInfo(Struct):
    weight_version: str | int | None = None


class _Paused(Struct):
    is_paused: bool = False


class _Version(Struct):
    version: str = "of unknown version"


class VLLMBackend(EngineBackend[Served]):
    """Generates with a vLLM server, over its token endpoint where it has one, else over `/v1/completions`."""

    parameters = PARAMETERS

    def __init__(self, options: Options, model: str) -> None:
        super().__init__(VLLM, options, model)
        self._options = options
        if options.launch:
            self.tokenizer = options.launch_arg("--tokenizer") or options.launch

    async def check(self) -> dict[str, Any]:
        """Ask the server what it serves and have it generate one token. Raises where it can't be used."""
        served = await self.served_anew()
        version = await self._server.ask("/version", _Version, missing=_Version())
        echo = logprobs = False
        async for delta in self.generate(_PROBE):
            echo = echo or delta.prompt_token_ids == _PROBE_IDS
            logprobs = logprobs or (bool(delta.token_ids) and delta.logprobs is not None)
        return {
            "engine": f"vLLM {version.version}",
            "model": served.model,
            "max_model_len": served.max_model_len,
            "endpoint": PATHS[served.endpoint],
            "echo": echo,
            "logprobs": logprobs,
            "logprobs_mode": served.logprobs_mode,
        }

    async def healthy(self) -> bool:
        """Whether the server answers and its engine is alive."""
        return await self._server.status("/health", timeout_s=_HEALTH_S) == 200

    async def ask(self, served: Served, request: TokenRequest) -> AsyncGenerator[TokenDelta, None]:
        """One request at an endpoint: a stream of events, or where nobody streams one reply."""
        endpoint = self._endpoint(served, request.sampling)
        body = request_body(endpoint, served.model, request, served.max_model_len)
        settings: dict[str, Any] | None = applied(endpoint, body)
        reader = ReplyReader(endpoint, request, served.logprobs_mode, self._server)
        tells_none = endpoint == "completions" and served.tells_weights
        before = await self.weight_version() if tells_none else None
        async with aclosing(self._deltas(PATHS[endpoint], body, reader)) as deltas:
            async for delta in deltas:
                delta.sampling, settings = settings, None
                if tells_none and delta.finish_reason:
                    delta.weight_versions = reader.span(delta.index, before, await self.weight_version())
                yield delta
        if not reader.finished:
            raise UpstreamError(f"the reply of {self._server.name} ended before all of its choices did")

    async def _deltas(
        self, path: str, body: dict[str, Any], reader: ReplyReader
    ) -> AsyncGenerator[TokenDelta, None]:
        async with self._server.post(path, body) as response:
            if not body["stream"]:
                for delta in reader.deltas(await self._server.whole(response)):
                    yield delta
                return
            if response.content_type != "text/event-stream":
                raise UpstreamError(
                    f"{self._server.name} answered with {response.content_type!r} in place of an event stream"
                )
            async with aclosing(EventStream(response.content).read()) as events:
                async for together in events:
                    for delta in joined([delta for data in together for delta in reader.deltas(data)]):
                        yield delta

    def _endpoint(self, served: Served, sampling: Sampling) -> Endpoint:
        """The endpoint for this request: the chosen one, unless only the other has a parameter it sets."""
        if self._options.endpoint == "auto" and not COMPLETIONS_ONLY.isdisjoint(sampling.extra):
            return "completions"
        return served.endpoint

    # ---- weights: vLLM's development mode (VLLM_SERVER_DEV_MODE=1) has these endpoints

    async def pause(self, mode: PauseMode) -> None:
        """See `Backend.pause`. Calls that run end with "abort" where the mode says so."""
        await self._switch(f"/pause?mode={mode}")

    async def resume(self) -> None:
        """See `Backend.resume`."""
        await self._switch("/resume")

    async def is_paused(self) -> bool:
        """See `Backend.is_paused`."""
        return (await self._server.ask("/is_paused", _Paused, missing=_Paused())).is_paused

    async def set_weights(self, version: int | str, path: str | None = None) -> None:
        """See `Backend.set_weights`. The weights themselves come by vLLM's own weight transfer, not from a path.

        A server that keeps no version is not told: it then reports none either.
        """
        if path is not None:
            raise Unsupported(
                "vLLM loads no weights from a path: send them by its weight transfer, then give their version alone"
            )
        body = {"new_version": str(version)}
        await self._server.ask("/update_weight_version", dict, body=body, missing={})

    async def weight_version(self) -> int | str | None:
        """See `Backend.weight_version`."""
        info = await self._server.ask("/weight_info", _WeightInfo, missing=_WeightInfo())
        return as_version(info.weight_version)

    async def _switch(self, path: str) -> None:
        if not await self._server.ask(path, dict, body={}, missing={}, timeout_s=_PAUSE_S):
            raise Unsupported(
                f"{self._server.name} has no {path.partition('?')[0]}: start it with VLLM_SERVER_DEV_MODE=1"
            )

    # ---- what the server says about itself

    async def ask_served(self) -> Served:
        """Ask for the model, the endpoint, the length and the logprobs."""
        named = self._options.model
        listed = (
            await self._server.ask("/v1/models", _Cards, missing=_Cards())
            if named
            else await self._server.ask("/v1/models", _Cards)
        )
        card = _chosen(listed.data or [], named)
        if not (named or card.id):
            raise UpstreamError(f"{self._server.name} lists no model; name it with the option 'model'")
        info = await self._server.ask("/weight_info", _WeightInfo, missing=_WeightInfo())
        return Served(
            model=named or card.id,
            endpoint=await self._served_endpoint(),
            max_model_len=card.max_model_len,
            logprobs_mode=await self._logprobs_mode(),
            tells_weights=info.weight_version is not None,
        )

    async def _served_endpoint(self) -> Endpoint:
        """The token endpoint if the server has it: an empty body is refused by it and costs the engine nothing."""
        if self._options.endpoint != "auto":
            return self._options.endpoint
        try:
            await self._server.ask(PATHS["generate"], dict, body={})
        except UpstreamError as error:
            if error.status in {400, 422}:
                return "generate"
            if error.status not in NO_SUCH_PATH:
                raise
        return "completions"

    async def _logprobs_mode(self) -> str:
        if self._options.logprobs_mode:
            return self._options.logprobs_mode
        if launched := self._options.launch_arg("--logprobs-mode"):
            return launched
        info: dict[str, Any] = {}
        info = await self._server.ask("/server_info?config_format=json", dict, missing=info)
        for name in ("vllm_config", "model_config"):
            found = info.get(name)
            info = found if isinstance(found, dict) else {}
        return str(info.get("logprobs_mode") or _DEFAULT_LOGPROBS_MODE)


def _chosen(cards: list[_Card], name: str) -> _Card:
    """The card of the model called `name`, else the first: adapters that are loaded when asked for have none."""
    return next((card for card in cards if card.id == name), cards[0] if cards else _Card())
