"""A server of Chat Completions on a real socket that answers from a script, and the clients that ask through rolltap."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
from aiohttp import web
from msgspec import Struct, field

from rolltap.testing import MODEL

HANG = object()
"""In a script's stream: nothing more comes, and the connection stays open."""

CUT = object()
"""In a script's stream: the connection breaks."""

DONE = b"data: [DONE]\n\n"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}


class Refusal(Struct):
    """An answer that is no completion."""

    status: int
    body: Any
    headers: Mapping[str, str] = {}


def chunk(delta: Mapping[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk of one choice; `more` are fields of the choice, `usage` one of the chunk."""
    top = {"usage": more.pop("usage")} if "usage" in more else {}
    choice = {"index": 0, "delta": dict(delta or {}), "finish_reason": finish, **more}
    return envelope("chat.completion.chunk", [choice], **top)


def call(
    index: int | None, name: str | None = None, arguments: str | None = None, **more: Any
) -> dict[str, Any]:
    """A chunk with a fragment of a tool call."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    fragment = {"index": index, "function": function, **more}
    return chunk({"tool_calls": [{key: value for key, value in fragment.items() if value is not None}]})


def completion(message: Mapping[str, Any], finish: str = "stop", **more: Any) -> dict[str, Any]:
    """A plain reply of one choice; `more` are fields of the reply."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return envelope("chat.completion", [choice], **more)


def envelope(kind: str, choices: Sequence[Any], **more: Any) -> dict[str, Any]:
    """What is around the choices."""
    return {"id": "up-1", "object": kind, "created": 1, "model": "big", "choices": list(choices), **more}


def in_chunks(*texts: str) -> list[Any]:
    """A stream of these texts that ends well and reports usage."""
    begin = chunk({"role": "assistant", "content": ""})
    return [
        begin,
        *(chunk({"content": text}) for text in texts),
        chunk(finish="stop"),
        envelope("chat.completion.chunk", [], usage=USAGE),
        DONE,
    ]


class Upstream:
    """The server. An entry of the script is a reply (a dict), a stream (a list) or a `Refusal`."""

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.left = asyncio.Event()
        """Set when a client closed a stream before its end."""
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The next entry."""
        self.requests.append(await request.json())
        self.headers.append(request.headers)
        entry = self.script.pop(0)
        if isinstance(entry, Refusal):
            body = entry.body if isinstance(entry.body, str) else json.dumps(entry.body)
            return web.Response(
                status=entry.status, text=body, headers={"content-type": "application/json", **entry.headers}
            )
        if isinstance(entry, dict):
            return web.json_response(entry)
        return await self._stream(request, entry)

    async def models(self, request: web.Request) -> web.Response:
        """The models it has."""
        return web.json_response({"object": "list", "data": [{"id": "big"}]})

    async def _stream(self, request: web.Request, entry: Sequence[Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            for item in entry:
                if item is HANG:
                    await asyncio.sleep(60)
                elif item is CUT:
                    assert request.transport is not None
                    request.transport.abort()
                elif isinstance(item, bytes):
                    await response.write(item)
                elif isinstance(item, float):
                    await asyncio.sleep(item)
                else:
                    await response.write(f"data: {json.dumps(item)}\n\n".encode())
        except asyncio.CancelledError:
            self.left.set()
            raise
        await response.write_eof()
        return response


@asynccontextmanager
async def scripted_upstream() -> AsyncIterator[Upstream]:
    """An upstream that listens."""
    upstream = Upstream()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", upstream.answer)
    app.router.add_get("/v1/models", upstream.models)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    upstream.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield upstream
    finally:
        await runner.cleanup()


def backend_table(kind: str, upstream: Upstream, **more: Any) -> dict[str, Any]:
    """The config of a backend of this kind that asks the upstream."""
    own = {"provider": "openai"} if kind == "anyllm" else {}
    return {"kind": kind, "api_base": upstream.url, "api_key_env": "TEST_KEY", "model": "big", **own, **more}


class Heard(Struct, kw_only=True):
    """A reply as a client of any dialect understood it."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    finish: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


async def ask(base: str, dialect: str, *, stream: bool, tools: bool = True, **more: Any) -> Heard:
    """Ask with the dialect's own SDK; streams by its accumulating helper."""
    if dialect == "messages":
        async with anthropic.AsyncAnthropic(base_url=base, api_key="x", max_retries=0) as theirs:
            return await _messages(theirs, stream, tools, more)
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="x", max_retries=0) as ours:
        return await (_chat if dialect == "chat" else _responses)(ours, stream, tools, more)


async def _chat(client: Any, stream: bool, tools: bool, more: dict[str, Any]) -> Heard:
    function = {"name": "weather", "parameters": SCHEMA}
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **more}
    if tools:
        asked["tools"] = [{"type": "function", "function": function}]
    if stream:
        asked["stream_options"] = {"include_usage": True}
        async with client.chat.completions.stream(**asked) as events:
            chunks = [event.chunk async for event in events if event.type == "chunk"]
            answer = await events.get_final_completion()
        said = [each.choices[0].delta for each in chunks if each.choices]
    else:
        answer = await client.chat.completions.create(**asked)
        said = [answer.choices[0].message]
    (choice,) = answer.choices
    details = answer.usage.prompt_tokens_details
    return Heard(
        text=choice.message.content or "",
        reasoning="".join(getattr(each, "reasoning_content", None) or "" for each in said),
        calls=[(each.function.name, each.function.arguments) for each in choice.message.tool_calls or ()],
        finish=choice.finish_reason,
        prompt_tokens=answer.usage.prompt_tokens,
        output_tokens=answer.usage.completion_tokens,
        cached_tokens=details.cached_tokens if details else None,
    )


async def _messages(client: Any, stream: bool, tools: bool, more: dict[str, Any]) -> Heard:
    asked: Any = {
        "model": MODEL,
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "hi"}],
        **more,
    }
    if tools:
        asked["tools"] = [{"name": "weather", "input_schema": SCHEMA}]
    if stream:
        async with client.messages.stream(**asked) as events:
            answer = await events.get_final_message()
    else:
        answer = await client.messages.create(**asked)
    heard = Heard(
        finish=answer.stop_reason,
        prompt_tokens=answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0),
        output_tokens=answer.usage.output_tokens,
        cached_tokens=answer.usage.cache_read_input_tokens,
    )
    for block in answer.content:
        if block.type == "text":
            heard.text += block.text
        elif block.type == "thinking":
            heard.reasoning += block.thinking
        else:
            heard.calls.append((block.name, json.dumps(block.input)))
    return heard


async def _responses(client: Any, stream: bool, tools: bool, more: dict[str, Any]) -> Heard:
    asked: Any = {"model": MODEL, "input": "hi", **more}
    if tools:
        asked["tools"] = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}]
    if stream:
        async with client.responses.stream(**asked) as events:
            answer = await events.get_final_response()
    else:
        answer = await client.responses.create(**asked)
    heard = Heard(
        text=answer.output_text,
        finish=answer.status,
        prompt_tokens=answer.usage.input_tokens,
        output_tokens=answer.usage.output_tokens,
        cached_tokens=answer.usage.input_tokens_details.cached_tokens,
    )
    for item in answer.output:
        if item.type == "function_call":
            heard.calls.append((item.name, item.arguments))
        elif item.type == "reasoning":
            heard.reasoning += "".join(part.text for part in (*(item.content or ()), *item.summary))
    return heard
