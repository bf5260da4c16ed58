"""A server that speaks vLLM's HTTP as vLLM 0.32 was seen to, from a script: for tests that need its every mood.

tests/live compares the shape of its events with a real server's.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Token = tuple[int, float | None]


@dataclass
class Choice:
    """One choice to be generated: its tokens with their logprobs, how it ends and what else is reported with it."""

    tokens: list[Token]
    finish_reason: str | None = "stop"
    stop_reason: int | str | None = None
    alternatives: list[dict[int, float | None]] | None = None
    experts: str | None = None
    masks: list[list[int]] | None = None


@dataclass
class ScriptedVLLM:
    """What the server is like and what it says. `asked` keeps each generating request: (path, body, headers)."""

    choices: list[Choice] = field(default_factory=lambda: [Choice([(7, -0.5), (8, -0.25), (2, -1.5)])])
    model: str = "served"
    max_model_len: int | None = 100
    scale_out: bool = True
    development: bool = False
    echo: bool = True
    returns_ids: bool = True
    names_ids: bool = True
    cached_tokens: int | None = None
    logprobs_mode: str = "raw_logprobs"
    weight_version: str = "v1"
    tokens_an_event: int = 1
    cut: int = 0
    """Frames are sent in pieces of so many bytes; 0: each in one."""
    pause: float = 0.0
    """Seconds before each frame, and for each token of a reply that is not streamed."""
    frames: list[bytes] | None = None
    """Sent in place of the choices' frames."""
    whole: bytes | None = None
    """Sent in place of the choices where no stream is asked for."""
    paused: bool = False
    pauses: list[str] = field(default_factory=list)
    """The modes of the pauses so far."""
    error: Callable[[], web.Response] | None = None
    """The answer to each generating request."""
    asked: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    probes: int = 0
    running: int = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/version", self._version)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_post("/v1/completions", self._completions)
        if self.development:
            app.router.add_get("/server_info", self._server_info)
            app.router.add_get("/weight_info", self._weight_info)
            app.router.add_get("/is_paused", self._is_paused)
            app.router.add_post("/pause", self._pause)
            app.router.add_post("/resume", self._resume)
            app.router.add_post("/update_weight_version", self._update_weight_version)
        return app

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": self.model, "object": "model", "owned_by": "vllm", "max_model_len": self.max_model_len}
        return web.json_response({"object": "list", "data": [card]})

    async def _server_info(self, request: web.Request) -> web.Response:
        assert request.query["config_format"] == "json"
        return web.json_response({"vllm_config": {"model_config": {"logprobs_mode": self.logprobs_mode}}})

    async def _weight_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.weight_version})

    async def _is_paused(self, request: web.Request) -> web.Response:
        return web.json_response({"is_paused": self.paused})

    async def _pause(self, request: web.Request) -> web.Response:
        self.pauses.append(request.query["mode"])
        self.paused = True
        return web.json_response({"status": "paused"})

    async def _resume(self, request: web.Request) -> web.Response:
        self.paused = False
        return web.json_response({"status": "resumed"})

    async def _update_weight_version(self, request: web.Request) -> web.Response:
        version = (await request.json())["new_version"]
        if not isinstance(version, str):
            return refusal(422, "Input should be a valid string", "Bad Request")
        self.weight_version = version
        return web.json_response({"success": True, "new_version": version})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        if not self.scale_out:
            return refusal(403, "Scale-out endpoints are disabled.", "PermissionDeniedError")
        body = await request.json()
        if not body:
            self.probes += 1
            return refusal(400, "2 validation errors", "Bad Request")
        return await self._answer(request, body, body["token_ids"], self.generate_event)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return await self._answer(request, body, body["prompt"], self.completions_event)

    async def _answer(
        self, request: web.Request, body: Any, prompt: list[int], event: Any
    ) -> web.StreamResponse:
        self.asked.append((request.path, body, dict(request.headers)))
        if self.error is not None:
            return self.error()
        if body["model"] != self.model:
            return refusal(404, f"The model `{body['model']}` does not exist.", "NotFoundError")
        if not body["stream"]:
            return await self._whole(prompt, event)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        self.running += 1
        try:
            for frame in self.frames or self._frames(prompt, event):
                await asyncio.sleep(self.pause)
                for start in range(0, len(frame), self.cut or len(frame)):
                    await response.write(frame[start : start + (self.cut or len(frame))])
                    await asyncio.sleep(0)
        finally:
            self.running -= 1
        return response

    async def _whole(self, prompt: list[int], event: Any) -> web.Response:
        self.running += 1
        try:
            await asyncio.sleep(self.pause * max(len(choice.tokens) for choice in self.choices))
            if self.whole is not None:
                return web.Response(body=self.whole, content_type="application/json")
            events = [
                event(index, choice, 0, max(len(choice.tokens), 1), prompt if self.echo else None)
                for index, choice in enumerate(self.choices)
            ]
            reply = {**events[0], "choices": [each["choices"][0] for each in events]}
            return web.json_response(reply | {"usage": self._usage(prompt)})
        finally:
            self.running -= 1

    def _usage(self, prompt: list[int]) -> dict[str, Any]:
        usage: dict[str, Any] = {"prompt_tokens": len(prompt), "total_tokens": 9, "completion_tokens": 3}
        if self.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        return usage

    def _frames(self, prompt: list[int], event: Any) -> list[bytes]:
        frames = []
        for start in range(0, max(len(choice.tokens) for choice in self.choices), self.tokens_an_event):
            for index, choice in enumerate(self.choices):
                if start < len(choice.tokens):
                    end = start + self.tokens_an_event
                    frames.append(event(index, choice, start, end, prompt if self.echo else None))
        frames.append({"id": "x", "choices": [], "usage": self._usage(prompt)})
        return [*map(frame, frames), b"data: [DONE]\n\n"]

    def generate_event(
        self, index: int, choice: Choice, start: int, end: int, prompt: list[int] | None
    ) -> dict[str, Any]:
        """One event of `/inference/v1/generate`."""
        last = end >= len(choice.tokens)
        content = [
            {"token_id": token, "logprob": logprob, "rank": 1, "top_logprobs": self._ranked(choice, place)}
            for place, (token, logprob) in enumerate(choice.tokens[start:end], start)
        ]
        event: dict[str, Any] = {
            "request_id": "generate-tokens-1",
            "usage": None,
            "output_mode": "tokens",
            "choices": [
                {
                    "index": index,
                    "finish_reason": choice.finish_reason if last else None,
                    "stop_reason": choice.stop_reason if last else None,
                    "token_ids": [token for token, _ in choice.tokens[start:end]],
                    "routed_experts": choice.experts if last else None,
                    "sampling_mask": choice.masks[start:end] if choice.masks else None,
                    "weight_versions": [
                        {"version": self.weight_version, "start": 0, "end": len(choice.tokens)}
                    ]
                    if last
                    else None,
                    "logprobs": {"content": content},
                }
            ],
        }
        if prompt is not None and start == index == 0:
            event["prompt_token_ids"] = prompt
        return event

    def _ranked(self, choice: Choice, position: int) -> list[dict[str, Any]]:
        token, logprob = choice.tokens[position]
        alternatives = choice.alternatives[position] if choice.alternatives else {token: logprob}
        return [{"token_id": each, "logprob": value, "rank": 1} for each, value in alternatives.items()]

    def completions_event(
        self, index: int, choice: Choice, start: int, end: int, prompt: list[int] | None
    ) -> dict[str, Any]:
        """One event of `/v1/completions`."""
        last = end >= len(choice.tokens)
        tokens = choice.tokens[start:end]
        alternatives = (choice.alternatives or [{token: logprob} for token, logprob in choice.tokens])[
            start:end
        ]
        event_choice: dict[str, Any] = {
            "index": index,
            "text": "x" * len(tokens),
            "logprobs": {
                "text_offset": [0] * len(tokens),
                "token_logprobs": [logprob for _, logprob in tokens],
                "tokens": [f"token_id:{token}" if self.names_ids else "x" for token, _ in tokens],
                "top_logprobs": [
                    {f"token_id:{token}": value for token, value in each.items()} for each in alternatives
                ],
            },
            "finish_reason": choice.finish_reason if last else None,
            "stop_reason": choice.stop_reason if last else None,
        }
        if self.returns_ids:
            event_choice["prompt_token_ids"] = prompt if start == 0 else None
            event_choice["token_ids"] = [token for token, _ in tokens]
        return {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1,
            "model": self.model,
            "choices": [event_choice],
        }


def frame(event: dict[str, Any]) -> bytes:
    """An event as vLLM sends it."""
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def refusal(status: int, message: str, kind: str, **headers: str) -> web.Response:
    """An error as vLLM says it."""
    error = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": error}, status=status, headers=headers)
