"""Thousands of requests that nobody should send, to every endpoint of a running server: none may make it fail or hang.

Every request comes from one seed, so a failure can be had again. The routes are the application's own: an endpoint that
is added is asked as well.
"""

import asyncio
import copy
import json
import logging
import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from unittest.mock import patch

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from rolltap import ChatBackend, ChatDelta, ToolCall
from rolltap.server import dialects
from rolltap.testing import Reply, RunningServer, ScriptedTokenBackend, serve

AT_ONCE = 16
ANSWERS_WITHIN_S = 20.0

_SCHEMA: Any = {"type": "object", "properties": {"a": {"type": "string"}}}
_TOOL: Any = {"type": "function", "function": {"name": "f", "description": "d", "parameters": _SCHEMA}}
_IMAGE = "data:image/png;base64,iVBORw0KGgo="

_CHAT: Any = {
    "model": "tokens",
    "messages": [
        {"role": "system", "content": "s"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "t", "cache_control": {"type": "ephemeral"}},
                {"type": "image_url", "image_url": {"url": _IMAGE, "detail": "low"}},
                {
                    "type": "file",
                    "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="},
                },
                {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
            ],
            "x_note": {"a": 1},
        },
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "r",
            "reasoning_details": [{"type": "reasoning.text", "text": "r"}],
            "tool_calls": [
                {
                    "id": "c",
                    "type": "function",
                    "function": {"name": "f", "arguments": '{"a": "b"}'},
                    "extra_content": {"google": {"thought_signature": "s"}},
                },
                {"id": 4, "type": "custom", "custom": {"name": "edit", "input": "+a"}},
            ],
        },
        {"role": "tool", "tool_call_id": 4, "content": [{"type": "text", "text": "x"}]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
        {"role": "user", "content": "go on"},
    ],
    "tools": [_TOOL, {"type": "custom", "custom": {"name": "edit", "format": {"type": "text"}}}],
    "tool_choice": "auto",
    "return_token_ids": False,
    "prompt_cache_key": "k",
    "stop": ["zz"],
    "n": 2,
    "max_tokens": 50,
    "temperature": 0.5,
    "logit_bias": {"5": 1},
    "logprobs": True,
    "top_logprobs": 2,
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": _SCHEMA}},
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "chat_template_kwargs": {"enable_thinking": False},
    "parallel_tool_calls": False,
}
_COMPLETIONS: Any = {
    "model": "tokens",
    "prompt": ["once upon a time", [1, 2, 3], "two"],
    "n": 2,
    "logprobs": 1,
    "echo": True,
    "prompt_logprobs": 1,
    "return_token_ids": True,
    "stop": "zz",
    "seed": 1,
    "stream": False,
    "max_tokens": 9,
}
_RESPONSES: Any = {
    "model": "tokens",
    "instructions": "i",
    "input": [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "t"},
                {"type": "input_image", "image_url": _IMAGE, "detail": "auto"},
                {"type": "input_file", "filename": "a.txt", "file_data": "SGk="},
            ],
        },
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "t"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "d", "name": "edit", "input": "+a"},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_image", "image_url": _IMAGE}],
        },
        {"type": "custom_tool_call_output", "call_id": "d", "output": "x"},
        {
            "type": "local_shell_call",
            "call_id": "e",
            "action": {"type": "exec", "command": ["pwd"], "env": {}},
        },
        {"type": "local_shell_call_output", "id": "o", "output": "/"},
        {"type": "computer_call_output", "call_id": "g", "output": {"image_url": _IMAGE}},
        {"type": "mcp_call", "id": "m", "name": "n", "arguments": "{}", "output": "x"},
        {"type": "compaction", "encrypted_content": "rolltap:eyJzdW1tYXJ5IjoicyJ9"},
        {"type": "reasoning", "encrypted_content": "rolltap:eyJhIjpbMV19", "summary": []},
        {"type": "additional_tools", "role": "developer", "tools": []},
    ],
    "tools": [
        {
            "type": "custom",
            "name": "edit",
            "format": {"type": "grammar", "syntax": "lark", "definition": "s"},
        },
        {"type": "function", "name": "f", "parameters": _SCHEMA, "strict": False},
        {"type": "web_search"},
    ],
    "text": {"format": {"type": "json_schema", "name": "n", "schema": _SCHEMA}},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
    "previous_response_id": None,
    "store": True,
    "stream": True,
}
_MESSAGES: Any = {
    "model": "tokens",
    "max_tokens": 50,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {
            "role": "user",
            "content": [{"type": "image", "source": {"type": "url", "url": _IMAGE}}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "text", "text": "t"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": "b"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "t"}]}
            ],
        },
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": _SCHEMA}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "stop_sequences": ["zz"],
    "stream": True,
}
_SESSION: Any = {
    "tool_parser": "hermes",
    "track_tree": True,
    "base_url": None,
    "model": "tokens",
    "sampling": {"temperature": 0.5, "n": 1},
    "metadata": {"a": 1},
}
BODIES = {
    "/chat/completions": _CHAT,
    "/completions": _COMPLETIONS,
    "/responses": _RESPONSES,
    "/messages": _MESSAGES,
    "/sessions/create": _SESSION,
}

STRANGE: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**63 - 1, 2**64 - 1, -(2**63), 0.5, -0.0, 1e308, 5e-324, "", " ", "\0", "\n", "a" * 5000,
    "🎉", "ﷺ", "\u202e", "\ufeff", "<|im_end|>", "<|im_start|>assistant\n", "<tool_call>", "</tool_call>", "{{ 7 * 7 }}",
    "{% raw %}", "{}", "[]", "null", "tokens", "chat", "no-such-model", "data:", "http://127.0.0.1:1/", "../..", [], {}, [[]],
    [None], {"": ""}, {"a": None}, {"type": "text"}, {"type": None}, [{}], ["a"], [0], [1, 2, 3], [-1], [2**40], [10**6] * 3,
]  # fmt: skip
RAW: list[bytes] = [
    b"", b" ", b"{", b"[]", b"null", b'"x"', b"\xff\xfe{}", b'{"a": "\xff"}', b'{"messages": [' * 3000, b"[" * 100_000,
    b'{"model": "\\ud800", "messages": []}', b'{"a": 1e999}', b'{"a": NaN}', b'{"a": 1' + b"0" * 5000 + b"}",
    b'{"a":1,"a":2}', b"\xef\xbb\xbf{}", b"{}" * 2, b"a=b&c=d", b"\x1f\x8b\x08\x00",
]  # fmt: skip
STRANGE_IDS = [
    "nope",
    "%00",
    "..",
    "%2e%2e%2f",
    "a" * 3000,
    "%F0%9F%8E%89",
    "00000000-0000-0000-0000-000000000000",
    "v1",
    "sessions",
]
STRANGE_HEADERS: list[dict[str, str]] = [
    {"content-type": "text/plain"}, {"content-type": "multipart/form-data; boundary=x"}, {"content-type": ";;;"},
    {"content-encoding": "gzip"}, {"content-encoding": "deflate"}, {"content-encoding": "nonsense"},
    {"authorization": "Bearer"}, {"authorization": "Basic !!!"}, {"authorization": "Bearer é"}, {"x-api-key": "x" * 5000},
    {"x-rolltap-session": "nope"}, {"x-rolltap-session": ""}, {"idempotency-key": "k" * 5000}, {"x-stainless-retry-count": "²"},
    {"x-stainless-retry-count": "-1"}, {"x-stainless-retry-count": "1"}, {"x-stainless-retry-count": "9" * 5000},
    {"expect": "100-continue"}, {"expect": "nonsense"}, {"accept": "text/html"}, {"accept-encoding": "nonsense"}, {"range": "bytes=0-1"},
    {"anthropic-version": "0"}, {"upgrade": "websocket", "connection": "upgrade"}, {"x-request-id": "mine"}, {"if-none-match": "*"},
]  # fmt: skip
QUERIES = [
    "",
    "?beta=true",
    "?mask=all",
    "?mask=",
    "?mask=%00",
    "?after=-1",
    "?format=x",
    "?limit=1&order=asc",
    "?stream=true",
    "?" + "a" * 3000,
    "?%",
    "?a=%ff",
]
SAID = [
    "Hi.",
    "",
    "🎉",
    '<tool_call>{"name": "f", "arguments": {"a": "b"}}</tool_call>',
    "<tool_call>{",
    "<think>x</think> y",
    "a zz b",
]


class Sent(NamedTuple):
    """One request."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str]
    leaves: bool
    """Whether the client leaves as soon as the answer begins."""

    def __str__(self) -> str:
        return f"{self.method} {self.path[:200]} {str(self.headers)[:500]}\n{self.body[:3000]!r}"


class TalkingChatBackend(ChatBackend):
    """Says something at random, in messages."""

    parameters = None

    def __init__(self, rng: random.Random) -> None:
        self._random = rng

    async def chat(self, request: Any) -> Any:
        for index in range(request.sampling.n):
            yield ChatDelta(
                index=index, text=self._random.choice(SAID), reasoning=self._random.choice(["", "Hm."])
            )
            if request.tools and self._random.random() < 0.5:
                yield ChatDelta(index=index, tool_calls=[ToolCall("f", "{")])
            yield ChatDelta(index=index, finish_reason="stop")


class Fuzzer:
    """Makes requests, to all routes but those whose streams last as long as their reader."""

    def __init__(self, seed: int, server: RunningServer) -> None:
        self._random = random.Random(seed)
        self._routes = [
            (route.method, route.resource.canonical)
            for route in server.app.router.routes()
            if route.resource is not None and route.method != "*" and "events" not in route.resource.canonical
        ]
        self.sessions: list[str] = []
        self.replies = ["resp_0"]

    def request(self) -> Sent:
        """The next request."""
        rng = self._random
        method, path = rng.choice(self._routes)
        body, headers = b"", {"content-type": "application/json"}
        if method == "POST" or rng.random() < 0.05:
            body = self._body(path)
        for _ in range(rng.choice([0, 0, 0, 1, 2])):
            headers.update(rng.choice(STRANGE_HEADERS))
        if rng.random() < 0.1:
            headers[rng.choice(["x-rolltap-session", "x-api-key"])] = rng.choice(self.sessions)
        if rng.random() < 0.03:
            method = rng.choice(["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "NONSENSE"])
        filled = path.replace("{sid}", self._session()).replace("{reply_id}", rng.choice(self.replies))
        return Sent(
            method,
            filled + rng.choice(QUERIES if rng.random() < 0.2 else [""]),
            body,
            headers,
            rng.random() < 0.05 or path.endswith("/events"),  # which never end
        )

    def _session(self) -> str:
        return self._random.choice(self.sessions if self._random.random() < 0.85 else STRANGE_IDS)

    def _body(self, path: str) -> bytes:
        rng = self._random
        if rng.random() < 0.08:
            return rng.choice(RAW)
        plain = next((body for end, body in BODIES.items() if end in path), _CHAT)
        body = self._damaged(copy.deepcopy(plain))
        if rng.random() < 0.3 and isinstance(body, dict):
            body["model"] = rng.choice(["chat", "tokens", "", None])
        if rng.random() < 0.2 and isinstance(body, dict) and "/responses" in path:
            body["previous_response_id"] = rng.choice(self.replies)
        if rng.random() < 0.2 and isinstance(body, dict) and isinstance(body.get("input"), list):
            kind, number = rng.choice(["msg", "rs", "fc", "x"]), rng.choice(["0", "1", "٣", ""])
            name = f"{kind}_{rng.choice(self.replies).removeprefix('resp_')}_{number}"
            body["input"].append({"type": "item_reference", "id": name})
        return json.dumps(body, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")

    def _damaged(self, body: Any) -> Any:
        rng = self._random
        for _ in range(rng.choice([0, 0, 1, 1, 2, 5])):
            known = list(_places(body))
            if not known:
                return body
            *outer, last = rng.choice(known)
            holder: Any = body
            for key in outer:
                holder = holder[key]
            what = rng.random()
            if what < 0.3:
                del holder[last]
            elif what < 0.8:
                holder[last] = copy.deepcopy(rng.choice(STRANGE))
            elif isinstance(holder, dict):
                holder[
                    rng.choice(["n", "stop", "type", "content", "", "\0", "extra", "prompt", "stream"])
                ] = copy.deepcopy(rng.choice(STRANGE))
            else:
                holder.append(copy.deepcopy(rng.choice(holder)) if holder else None)
        return body


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    steps: Sequence[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        steps = list(value.items())
    elif isinstance(value, list):
        steps = list(enumerate(value))
    for key, inner in steps:
        yield (*path, key)
        yield from _places(inner, (*path, key))


async def fuzz(
    tokenizer: str, requests: int, seed: int = 0, *, tell: Callable[[int], None] | None = None
) -> Counter[int]:
    """Send this many requests; how many were answered with which status. Raises `AssertionError` that shows a bad one."""
    rng = random.Random(seed)
    tokens = ScriptedTokenBackend(tokenizer, lambda ids, sampling: Reply(text=rng.choice(SAID), chunk=3))
    models = [
        {"name": "tokens", "backends": [{"kind": "given", "number": 0}]},
        {"name": "chat", "backends": [{"kind": "given", "number": 1}]},
    ]
    statuses: Counter[int] = Counter()
    with _logged_errors() as logged, patch.object(dialects, "RECEIVE_WITHIN_S", 2.0):
        async with serve(tokens, TalkingChatBackend(rng), config={"models": models}) as server:
            fuzzer = Fuzzer(seed, server)
            fuzzer.sessions = [await server.session(model=model) for model in ("tokens", "tokens", "chat")]
            for start in range(0, requests, AT_ONCE):
                sent = [fuzzer.request() for _ in range(min(AT_ONCE, requests - start))]
                statuses.update(await asyncio.gather(*(_exchange(server, fuzzer, each) for each in sent)))
                assert not logged, f"{logged[0]}\nwhile answering one of:\n" + "\n".join(map(str, sent))
                await _replace_deleted(server, fuzzer)
                if tell is not None:
                    tell(start + len(sent))
            async with server.http.get("/health") as response:
                health = await response.json()
            assert (health["status"], [each["healthy"] for each in health["backends"]]) == (
                "ok",
                [True, True],
            )
    assert not logged, logged[0]
    return statuses


async def _exchange(server: RunningServer, fuzzer: Fuzzer, sent: Sent) -> int:
    url = URL(server.url + sent.path, encoded=True)
    try:
        async with (
            asyncio.timeout(ANSWERS_WITHIN_S),
            server.http.request(sent.method, url, data=sent.body or None, headers=sent.headers) as response,
        ):
            if sent.leaves:
                response.close()
                return response.status
            _check(response, await response.read(), sent, fuzzer)
            return response.status
    except TimeoutError:
        raise AssertionError(f"no answer within {ANSWERS_WITHIN_S:g} s to\n{sent}") from None
    except aiohttp.ClientError as error:
        if sent.method == "HEAD" and isinstance(error, aiohttp.ClientResponseError):
            return error.status  # aiohttp answers what is no HTTP with a body, which HEAD must not have
        raise AssertionError(
            f"{type(error).__name__}: {str(error)[:500]} instead of an answer to\n{sent}"
        ) from error
    finally:
        if sent.path.startswith("/admin/pause"):  # else all others wait for the end of it
            async with server.http.post("/admin/resume", json={}) as resumed:
                assert resumed.status == 200, await resumed.text()


def _check(response: aiohttp.ClientResponse, data: bytes, sent: Sent, fuzzer: Fuzzer) -> None:
    shown = f"{response.status} {response.content_type} {data[:1000]!r}\nto\n{sent}"
    assert response.status < 500, shown
    if response.status == 417 or "x-request-id" not in response.headers:
        return  # aiohttp's own plain answer, before any handler: to an Expect it does not know, to what is no HTTP
    if response.status >= 400 and sent.method != "HEAD":
        assert response.content_type == "application/json", shown
        error = json.loads(data)["error"]
        assert error["message"], shown
        kind = (
            error["status"] if "status" in error else error["type"]
        )  # Google's word, or OpenAI's and Anthropic's
        assert kind not in {"server_error", "api_error", "INTERNAL"}, shown
    if response.content_type == "text/event-stream":
        assert data.endswith(b"\n\n"), shown
        for fault in (b'"server_error"', b'"api_error"', b"response.failed", b"event: error"):
            assert fault not in data, f"{data[-1000:]!r}\n{shown}"
    if data.startswith(b'{"id":"resp_'):
        fuzzer.replies.append(json.loads(data)["id"])


async def _replace_deleted(server: RunningServer, fuzzer: Fuzzer) -> None:
    async with server.http.get("/sessions") as response:
        alive = {session["uuid"]: session["model_name"] for session in (await response.json())["sessions"]}
    for at, session in enumerate(fuzzer.sessions):
        if session not in alive:
            fuzzer.sessions[at] = await server.session(model=("tokens", "tokens", "chat")[at])


@contextmanager
def _logged_errors() -> Iterator[list[str]]:
    """What is logged as an error: an exception that nobody handled, even where the client got an answer."""
    logged: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            if isinstance(error, HttpProcessingError):
                return  # what is no HTTP is answered and logged by aiohttp, before any handler
            if isinstance(error, web.RequestPayloadError) and isinstance(
                error.__cause__, HttpProcessingError
            ):
                return  # the same for a body that is found damaged once its request has been answered
            trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
            logged.append(record.getMessage() + "\n" + trace)

    handler = Keep(level=logging.ERROR)
    logging.getLogger().addHandler(handler)
    try:
        yield logged
    finally:
        with suppress(ValueError):
            logging.getLogger().removeHandler(handler)
