"""A server that speaks SGLang's HTTP as SGLang 0.5.23 does, by its published source (the files `http_server.py`,
`tokenizer_manager.py`, `io_struct.py` and `sampling_params.py` of the wheel): for tests that need its every mood.

What it generates comes from a `HashedModel`, whose logprobs depend on every id before, or from a script.
"""

import asyncio
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from transformers import PreTrainedTokenizerBase

FLOOR = -20.0
"""The logprob of what the hashed model would not say."""
FORMS: dict[str, dict[str, Any]] = {
    "cumulative": {},
    "incremental": {"incremental": True},
    "incremental with all logprobs": {"incremental": True, "slices_logprobs": False},
}
"""The forms of its streams, as options of `ScriptedSGLang`."""


class HashedModel:
    """A model without weights: what it says next follows from a hash of all ids before."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end: int) -> None:
        self.tokenizer = tokenizer
        self.end = end
        plain = [i for i in range(len(tokenizer)) if self._is_plain(tokenizer.decode([i]))]
        self._words = [i for i in plain if i not in tokenizer.all_special_ids]

    @staticmethod
    def _is_plain(text: str) -> bool:
        return bool(text) and text.isascii() and text.replace(" ", "").isalpha()

    def logprobs(self, ids: list[int]) -> dict[int, float]:
        """What may come after these ids."""
        mixed = 0
        for token in ids:
            mixed = (mixed * 1_000_003 ^ (token + 1)) & (2**64 - 1)
        rng = random.Random(mixed)
        scores = {token: rng.uniform(0.0, 3.0) for token in [*rng.sample(self._words, 11), self.end]}
        total = math.log(sum(map(math.exp, scores.values())))
        return {token: score - total for token, score in scores.items()}

    def rescore(self, ids: list[int]) -> list[float | None]:
        """Each id's logprob after those before it."""
        return [None, *(self.logprobs(ids[:at]).get(ids[at], FLOOR) for at in range(1, len(ids)))]


@dataclass
class Run:
    """One choice that is being generated."""

    prompt: list[int]
    params: dict[str, Any]
    rid: str
    ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    tops: list[dict[int, float]] = field(default_factory=list)
    spans: list[list[Any]] = field(default_factory=list)
    finish: dict[str, Any] | None = None

    def abort(self, **more: Any) -> None:
        self.finish = self.finish or {"type": "abort", "message": "Aborted", "status_code": None, **more}


@dataclass
class ScriptedSGLang:
    """What the server is like. `asked` keeps each generating request: (body, headers)."""

    model: HashedModel | None = None
    script: list[tuple[int, float | None]] = field(default_factory=lambda: [(7, -0.5), (8, -0.25), (2, -1.5)])
    """What is generated without a model; ends as `finish` says."""
    finish: dict[str, Any] = field(default_factory=lambda: {"type": "stop", "matched": 2})
    incremental: bool = False
    """Started with --incremental-streaming-output."""
    slices_logprobs: bool = True
    """With it, whether logprobs are cut like the ids; older servers gave all of them each time."""
    echoes: bool = True
    """Whether it knows `return_prompt_token_ids`; older servers ignore it."""
    places_versions: bool = True
    """Whether it knows `weight_versions`; older servers tell the last version alone."""
    older: bool = False
    """Whether it has the paths' older names alone."""
    saw: Callable[[list[int]], list[int]] = list
    """What it makes of the ids it is sent."""
    weight_version: str = "default"
    max_model_len: int = 2000
    pause_s: float = 0.0
    """Seconds for each token."""
    paused: bool = False
    healthy: bool = True
    """Whether its engine still generates, as `/health_generate` tells."""
    frames: list[bytes] | None = None
    """Sent in place of a stream's frames; `whole` in place of a whole reply."""
    whole: bytes | None = None
    error: Callable[[], web.Response] | None = None
    aborts_at: int | None = None
    """Once: how many tokens are generated until the engine gives up."""
    asked: list[tuple[dict[str, Any], dict[str, str]]] = field(default_factory=list)
    controls: list[tuple[str, Any]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    """Those that run now."""
    resumed: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**26)
        get = "get_" if self.older else ""
        app.router.add_get(f"/{get}model_info", self._model_info)
        app.router.add_get(f"/{get}server_info", self._server_info)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health_generate", self._health)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/pause_generation", self._pause)
        app.router.add_post("/continue_generation", self._continue)
        app.router.add_post("/abort_request", self._abort_request)
        app.router.add_post("/update_weight_version", self._update_weight_version)
        app.router.add_post("/update_weights_from_disk", self._update_weights)
        return app

    async def _model_info(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": "some/model", "weight_version": self.weight_version})

    async def _server_info(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.5.23", "internal_states": [{}]})

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": "served", "object": "model", "max_model_len": self.max_model_len}
        return web.json_response({"object": "list", "data": [card]})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _pause(self, request: web.Request) -> web.Response:
        body = await self._noted(request)
        self.paused = True
        self.resumed.clear()
        return self._ended(every=body["mode"] == "abort")

    async def _continue(self, request: web.Request) -> web.Response:
        await self._noted(request)
        self.paused = False
        self.resumed.set()
        return self._ended()

    async def _abort_request(self, request: web.Request) -> web.Response:
        return self._ended(rid=(await self._noted(request))["rid"])

    async def _update_weight_version(self, request: web.Request) -> web.Response:
        body = await self._noted(request)
        self.weight_version = body["new_version"]
        return self._ended(every=body.get("abort_all_requests", True))

    async def _update_weights(self, request: web.Request) -> web.Response:
        body = await self._noted(request)
        if body["model_path"] == "missing":
            said = {"success": False, "message": "no such folder", "num_paused_requests": 0}
            return web.json_response(said, status=400)
        self.weight_version = body["weight_version"]
        return self._ended()

    async def _noted(self, request: web.Request) -> Any:
        body = await request.json()
        self.controls.append((request.path.strip("/"), body))
        return body

    def _ended(self, *, every: bool = False, rid: str | None = None) -> web.Response:
        for run in self.runs:
            if every or run.rid == rid:
                run.abort()
        return web.json_response({"success": True, "message": "ok"})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append((body, dict(request.headers)))
        if self.error is not None:
            return self.error()
        params = body["sampling_params"]
        prompt, n = self.saw(body["input_ids"]), params.get("n", 1)
        if len(prompt) + params["max_new_tokens"] > self.max_model_len:
            why = "Requested token count exceeds the model's maximum context length of 2000 tokens."
            return web.json_response({"error": {"message": why}}, status=400)
        if self.paused:
            await self.resumed.wait()
        runs = [Run(prompt, params, body.get("rid", "own") if n == 1 else f"own-{i}") for i in range(n)]
        self.runs += runs
        try:
            if body["stream"]:
                return await self._stream(request, body, runs)
            return await self._whole(request, body, runs)
        finally:
            self.runs = [run for run in self.runs if run not in runs]

    async def _stream(self, request: web.Request, body: Any, runs: list[Run]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        if self.frames is not None:
            await response.write(b"".join(self.frames))
            return response
        told = [0] * len(runs)
        while any(run.finish is None for run in runs):
            for index, run in enumerate(runs):
                if run.finish is None:
                    await self._step(run, index)
                    event = self._reply(body, run, told[index], stream=True)
                    told[index] = len(run.ids)
                    event |= {"index": index} if len(runs) > 1 else {}
                    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _whole(self, request: web.Request, body: Any, runs: list[Run]) -> web.Response:
        for index, run in enumerate(runs):
            while run.finish is None:
                await self._step(run, index)
            status = run.finish.get("status_code")
            if status:
                return web.json_response({"message": run.finish["message"], "code": status}, status=status)
        if self.whole is not None:
            return web.Response(body=self.whole, content_type="application/json")
        replies = [self._reply(body, run, 0, stream=False) for run in runs]
        return web.json_response(replies if len(runs) > 1 else replies[0])

    def _reply(self, body: Any, run: Run, told: int, *, stream: bool) -> dict[str, Any]:
        """A choice so far: the whole of it, or what was not told yet."""
        start = told if stream and self.incremental else 0
        first = start if self.slices_logprobs else 0
        prompt = len(run.prompt)
        meta: dict[str, Any] = {
            "id": run.rid,
            "finish_reason": run.finish,
            "prompt_tokens": prompt,
            "completion_tokens": len(run.ids),
            "cached_tokens": 0 if body["logprob_start_len"] == 0 else prompt - 1,
            "weight_version": self.weight_version,
            "output_token_logprobs": self._tokens(run)[first:],
            "output_token_logprobs_length": len(run.ids),
            "input_token_logprobs": [],
        }
        if body["logprob_start_len"] == 0:
            scores = self.model.rescore(run.prompt) if self.model else [None, *[-1.0] * (prompt - 1)]
            meta["input_token_logprobs"] = [
                [score, token, None] for score, token in zip(scores, run.prompt, strict=True)
            ]
        if count := body["top_logprobs_num"]:
            likeliest = [sorted(top.items(), key=lambda item: -item[1])[:count] for top in run.tops]
            meta["output_top_logprobs"] = [[[lp, i, None] for i, lp in top] for top in likeliest][first:]
        if self.places_versions and run.finish is not None:
            meta["weight_versions"] = [{"version": v, "start": s, "end": e} for s, e, v in run.spans]
        if run.finish is not None and body.get("return_routed_experts"):
            meta["routed_experts"] = "AAEC"
        reply: dict[str, Any] = {"text": "…", "output_ids": run.ids[start:], "meta_info": meta}
        if self.echoes and body.get("return_prompt_token_ids"):
            reply["prompt_token_ids"] = run.prompt
        return reply

    @staticmethod
    def _tokens(run: Run) -> list[list[Any]]:
        return [[logprob, token, None] for token, logprob in zip(run.ids, run.logprobs, strict=True)]

    async def _step(self, run: Run, index: int) -> None:
        """Generate one token, unless the run has been aborted."""
        await asyncio.sleep(self.pause_s)
        while self.paused and run.finish is None:  # noqa: ASYNC110 - until either changes
            await asyncio.sleep(0.005)
        if run.finish is not None:
            return
        if self.aborts_at is not None and len(run.ids) >= self.aborts_at:
            self.aborts_at = None
            run.abort()
            return
        token, logprob, top = self._next(run, index)
        run.ids.append(token)
        run.logprobs.append(logprob)
        run.tops.append(top)
        at = len(run.ids)
        if run.spans and run.spans[-1][2] == self.weight_version:
            run.spans[-1][1] = at
        else:
            run.spans.append([at - 1, at, self.weight_version])
        run.finish = run.finish or self._end(run)

    def _next(self, run: Run, index: int) -> tuple[int, float | None, dict[int, float]]:
        if self.model is None:
            token, logprob = self.script[len(run.ids)]
            return token, logprob, {token: logprob or 0.0, token + 100: -9.0}
        raw = self.model.logprobs(run.prompt + run.ids)
        params = run.params
        if forced := self._forced(run):
            return forced, 0.0, {forced: 0.0}
        bias = params.get("logit_bias", {})
        allowed = {token: score + bias.get(str(token), 0.0) for token, score in raw.items()}
        if len(run.ids) < params.get("min_new_tokens", 0):
            del allowed[self.model.end]
        if params["temperature"] == 0:
            token = max(allowed, key=lambda each: allowed[each])
        else:
            rng = random.Random(f"{run.rid} {index} {params.get('sampling_seed')} {len(run.ids)}")
            weights = [math.exp(score / params["temperature"]) for score in allowed.values()]
            (token,) = rng.choices(list(allowed), weights)
        return token, raw[token], raw

    def _forced(self, run: Run) -> int | None:
        """The next token of the one text that the grammar allows, as this server reads it."""
        if not run.params.get("json_schema") or self.model is None:
            return None
        text = json.dumps(instance(json.loads(run.params["json_schema"])))
        ids = [*self.model.tokenizer.encode(text, add_special_tokens=False), self.model.end]
        return ids[len(run.ids)]

    def _end(self, run: Run) -> dict[str, Any] | None:
        params, token = run.params, run.ids[-1]
        if self.model is None:
            return self.finish if len(run.ids) == len(self.script) else None
        if token in (params.get("stop_token_ids") or ()):
            return {"type": "stop", "matched": token}
        if token == self.model.end and not params.get("ignore_eos"):
            return {"type": "stop", "matched": token}
        text = self.model.tokenizer.decode(run.ids)
        for stop in params.get("stop") or ():
            if stop in text:
                return {"type": "stop", "matched": stop}
        if len(run.ids) >= params["max_new_tokens"]:
            return {"type": "length", "length": len(run.ids)}
        return None


def instance(schema: dict[str, Any]) -> Any:
    """The simplest value that a schema of these tests allows."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "array":
        return [instance(schema["items"])]
    return {name: instance(each) for name, each in schema.get("properties", {}).items()}


def frames(*events: dict[str, Any]) -> Iterator[bytes]:
    """Events as SGLang sends them."""
    for event in events:
        yield b"data: " + json.dumps(event).encode() + b"\n\n"
