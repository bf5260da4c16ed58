"""What `bench_proxies.py` measures against: a scripted engine, and the least that a proxy can be.

`python tests/bench/floor.py engine IDS` or `python tests/bench/floor.py floor URL`; prints its address.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import orjson
from aiohttp import web

EVENTS_A_WRITE = 8
"""Events that an engine with many streams has ready at once for each."""

WORD = " word"
"""The chunks of a stream are numbered besides: LiteLLM takes many equal ones for a model that has lost its way."""
MAX_BODY = 2**26
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ScriptedEngine:
    """Answers vLLM's `/inference/v1/generate` and Chat Completions with as many tokens as were asked for."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_get("/version", _json({"version": "0.32.0"}))
        card = {"id": "big", "object": "model", "owned_by": "vllm", "max_model_len": 1_000_000}
        app.router.add_get("/v1/models", _json({"object": "list", "data": [card]}))
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        if not body:
            return web.json_response({"error": {"message": "2 errors", "code": 400}}, status=400)
        sampling = body["sampling_params"]
        num, choices = sampling["max_tokens"], range(sampling.get("n") or 1)
        if not body.get("stream"):
            whole = [self._choice(index, 0, num, num) for index in choices]
            reply = {
                "request_id": "1",
                "choices": whole,
                "prompt_token_ids": body["token_ids"],
                "usage": None,
            }
            return web.Response(body=orjson.dumps(reply), content_type="application/json")
        events = []
        for at in range(num):
            for index in choices:
                event = {"request_id": "1", "usage": None, "choices": [self._choice(index, at, at + 1, num)]}
                if at == index == 0:
                    event["prompt_token_ids"] = body["token_ids"]
                events.append(event)
        return await _stream(request, events)

    def _choice(self, index: int, start: int, stop: int, num: int) -> dict[str, Any]:
        ids = [self._ids[at % len(self._ids)] for at in range(start, stop)]
        content = [{"token_id": each, "logprob": -0.5, "rank": 1, "top_logprobs": []} for each in ids]
        for each in content:
            each["top_logprobs"] = [{"token_id": each["token_id"], "logprob": -0.5, "rank": 1}]
        return {
            "index": index,
            "finish_reason": "length" if stop == num else None,
            "stop_reason": None,
            "token_ids": ids,
            "logprobs": {"content": content},
        }

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        num, choices = body["max_tokens"], range(body.get("n") or 1)
        head = {"id": "chatcmpl-1", "created": 1, "model": "big"}
        if not body.get("stream"):
            message = {"role": "assistant", "content": WORD * num}
            whole = [{"index": index, "message": message, "finish_reason": "length"} for index in choices]
            usage = {"prompt_tokens": 9, "completion_tokens": num, "total_tokens": 9 + num}
            reply = {**head, "object": "chat.completion", "choices": whole, "usage": usage}
            return web.Response(body=orjson.dumps(reply), content_type="application/json")
        head["object"] = "chat.completion.chunk"
        events = [
            {
                **head,
                "choices": [
                    {"index": index, "delta": {"content": f"{WORD}{at % 97}"}, "finish_reason": None}
                ],
            }
            for at in range(num)
            for index in choices
        ]
        events += [
            {**head, "choices": [{"index": i, "delta": {}, "finish_reason": "length"}]} for i in choices
        ]
        return await _stream(request, events)


def _json(value: Any) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(value)

    return answer


async def _stream(request: web.Request, events: list[dict[str, Any]]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    frames = [b"data: " + orjson.dumps(event) + b"\n\n" for event in events] + [b"data: [DONE]\n\n"]
    for start in range(0, len(frames), EVENTS_A_WRITE):
        await response.write(b"".join(frames[start : start + EVENTS_A_WRITE]))
        await asyncio.sleep(0)
    return response


class Floor:
    """Reads a body and a reply as JSON and passes both on: what any proxy does that looks at what it passes."""

    def __init__(self, url: str) -> None:
        self._url = url + "/v1/chat/completions"

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post("/v1/chat/completions", self._answer)
        app.cleanup_ctx.append(self._connected)
        return app

    async def _connected(self, app: web.Application) -> Any:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as self._http:
            yield

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        headers = {"content-type": "application/json"}
        async with self._http.post(self._url, data=orjson.dumps(body), headers=headers) as upstream:
            if not body.get("stream"):
                reply = orjson.loads(await upstream.read())
                return web.Response(body=orjson.dumps(reply), content_type="application/json")
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            rest = b""
            async for data in upstream.content.iter_any():
                *frames, rest = (rest + data).split(b"\n\n")
                for frame in frames:
                    if frame != b"data: [DONE]":
                        frame = b"data: " + orjson.dumps(orjson.loads(frame[6:]))  # noqa: PLW2901
                    await response.write(frame + b"\n\n")
            return response


async def serve(app: web.Application) -> None:
    """Serve on a free port, and print the address."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    print(f"serving on http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    kind, given = sys.argv[1:]
    asyncio.run(serve(ScriptedEngine(orjson.loads(given)).app() if kind == "engine" else Floor(given).app()))
