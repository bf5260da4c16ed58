"""An engine that gives a generation up is waited for and gone on from: the client and the record see one whole reply."""

import asyncio
import itertools
import json

import pytest

from rolltap import TokenBackend, TokenDelta, hookimpl
from rolltap.testing import ScriptedTokenBackend, scripted_logprobs

TEXT = 'Straße 🙂 <tool_call>\n{"name": "run", "arguments": {"cmd": "ls 🙂"}}\n</tool_call>'
TOOLS = [
    {"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {}}}}
]
BODY = {"messages": [{"role": "user", "content": "Hi."}]}


class CutEngine(TokenBackend):
    """Always writes the same ids after the same prompt; gives requests up at the places that a test names.

    `cuts` are numbers of output tokens, per choice: a request that reaches its choice's next one ends there with "abort".
    """

    parameters = None

    def __init__(self, tokenizer, text, cuts=(), *, versions=None):
        self.scripted = ScriptedTokenBackend(tokenizer)
        self.tokenizer = tokenizer
        self.text = text
        self.cuts = (
            {0: list(cuts)} if not isinstance(cuts, dict) else {key: list(at) for key, at in cuts.items()}
        )
        self.requests = []
        self.paused_polls = 0
        self.versions = versions

    async def start(self):
        await self.scripted.start()
        self.ids = [self.scripted.encode(self.text), self.scripted.encode("Second: " + self.text)]
        for ids in self.ids:
            ids.append(self.scripted._tokenizer.eos_token_id)

    async def is_paused(self):
        self.paused_polls = max(0, self.paused_polls - 1)
        return self.paused_polls > 0

    async def generate(self, request):
        self.requests.append(request)
        prompt = list(request.prompt_ids)
        first = not hasattr(self, "prompt")
        if first:
            self.prompt = prompt
        done = prompt[len(self.prompt) :]
        for index in range(request.sampling.n):
            which = index if not done else (1 if done[0] == self.ids[1][0] else 0)
            ids = self.ids[which]
            assert ids[: len(done)] == done, "the ids that were generated are sent again"
            cuts = self.cuts.get(which, [])
            end = cuts.pop(0) if cuts else len(ids)
            most = request.sampling.max_tokens or 10_000
            for at in range(len(done), min(end, len(done) + most)):
                await asyncio.sleep(0)
                yield TokenDelta(
                    index=index,
                    token_ids=[ids[at]],
                    logprobs=scripted_logprobs([ids[at]]),
                    prompt_token_ids=prompt if at == len(done) else None,
                    cached_tokens=7 if not done else 100,
                )
            if end == len(ids):
                reason = "stop" if most >= end - len(done) else "length"
            else:
                reason = "abort" if most > end - len(done) else "length"
            version = self.versions.pop(0) if self.versions else None
            spans = (
                None if version is None else [[0, max(0, min(end, len(done) + most) - len(done)), version]]
            )
            yield TokenDelta(index=index, finish_reason=reason, weight_versions=spans)


def without_ids(text):
    """A reply without what differs between any two: ids and times."""

    def cleaned(value):
        if isinstance(value, dict):
            return {
                key: cleaned(item)
                for key, item in value.items()
                if key
                not in {"id", "created", "created_at", "item_id", "call_id", "obfuscation", "completed_at"}
            }
        return [cleaned(item) for item in value] if isinstance(value, list) else value

    if text.startswith("{"):
        return cleaned(json.loads(text))
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    return joined([cleaned(json.loads(each)) for each in data])


def joined(frames):
    """Streamed text may come in other pieces: what counts is the text, and all else in order."""
    return json.dumps(frames, sort_keys=True).replace(" ", "")


REQUESTS = {
    "chat": ("/v1/chat/completions", {**BODY, "tools": TOOLS}),
    "messages": (
        "/v1/messages",
        {**BODY, "max_tokens": 500, "tools": [{"name": "run", "input_schema": {"type": "object"}}]},
    ),
    "responses": (
        "/v1/responses",
        {"input": "Hi.", "tools": [{"type": "function", "name": "run", "parameters": {"type": "object"}}]},
    ),
    "completions": ("/v1/completions", {"prompt": "Hi.", "max_tokens": 500}),
}


async def ask(server, path, body):
    async with server.http.post(path, json=body) as response:
        text = await response.text()
        assert response.status == 200, text
        return text


async def reply(rolltap_serve, backend, dialect, *, stream, **fields):
    server = await rolltap_serve(backend)
    session = await server.session()
    path, body = REQUESTS[dialect]
    text = await ask(server, f"/{session}{path}", {**body, "stream": stream, **fields})
    return without_ids(text), await server.nodes(session)


SAME = ("tokens", "masked_tokens", "logprobs", "full_text")


@pytest.mark.parametrize("dialect", REQUESTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_cut_at_any_token_is_the_whole_one(rolltap_serve, rolltap_tokenizer, dialect, stream):
    whole, (expected,) = await reply(
        rolltap_serve, CutEngine(rolltap_tokenizer, TEXT), dialect, stream=stream
    )
    probe = CutEngine(rolltap_tokenizer, TEXT)
    await probe.start()
    places = range(len(probe.ids[0])) if dialect == "chat" else range(0, len(probe.ids[0]), 5)
    for place in places:
        backend = CutEngine(rolltap_tokenizer, TEXT, [place])
        cut, (node,) = await reply(rolltap_serve, backend, dialect, stream=stream)
        assert cut == whole, f"cut at {place}"
        assert [node[name] for name in SAME] == [expected[name] for name in SAME]
        assert node["metadata"]["continued"] == 1
        assert node["metadata"]["usage"] == expected["metadata"]["usage"]
        assert node["metadata"]["finish_reason"] == expected["metadata"]["finish_reason"]
        assert len(backend.requests) == 2
        if backend.requests[0].sampling.max_tokens:
            assert backend.requests[1].sampling.max_tokens == backend.requests[0].sampling.max_tokens - place


@pytest.mark.parametrize("stream", [False, True])
async def test_several_choices_are_cut_at_different_places_and_more_than_once(
    rolltap_serve, rolltap_tokenizer, stream
):
    path, body = "/v1/chat/completions", {**BODY, "n": 2}
    backend = CutEngine(rolltap_tokenizer, TEXT, {0: [3, 3, 9], 1: [11, 12]}, versions=[1, 1, 2, 2, 3, 3, 3])
    server = await rolltap_serve(backend)
    session = await server.session()
    await ask(server, f"/{session}{path}", {**body, "stream": stream})
    one, two = await server.nodes(session)
    for node, ids in zip((one, two), backend.ids, strict=True):
        assert node["tokens"] == backend.prompt + ids
        assert node["metadata"]["trainable"]
        spans = node["metadata"]["weight_versions"]
        assert [spans[0][0], spans[-1][1]] == [0, len(ids)]
        assert all(before[1] == after[0] for before, after in itertools.pairwise(spans))
    assert (one["metadata"]["continued"], two["metadata"]["continued"]) == (3, 2)


async def test_a_stop_string_that_the_cut_divides_is_found(rolltap_serve, rolltap_tokenizer):
    probe = CutEngine(rolltap_tokenizer, "one two three four")
    await probe.start()
    for place in range(1, len(probe.ids[0])):
        backend = CutEngine(rolltap_tokenizer, "one two three four", [place])
        server = await rolltap_serve(backend)
        session = await server.session()
        status, body = await server.post(f"/{session}/v1/chat/completions", {**BODY, "stop": ["o three"]})
        assert (status, body["choices"][0]["message"]["content"]) == (200, "one tw")


async def test_the_call_waits_for_as_long_as_the_engine_is_paused(rolltap_serve, rolltap_tokenizer):
    backend = CutEngine(rolltap_tokenizer, "one two", [2])
    backend.paused_polls = 4
    server = await rolltap_serve(backend, config={"server": {"request_timeout_s": 0.3}})
    session = await server.session()
    status, body = await server.post(f"/{session}/v1/chat/completions", BODY)
    assert (status, body["choices"][0]["message"]["content"]) == (200, "one two")


async def test_a_pause_has_an_end(rolltap_serve, rolltap_tokenizer):
    backend = CutEngine(rolltap_tokenizer, "one two", [2])
    backend.paused_polls = 10_000
    server = await rolltap_serve(backend, model={"pause_limit_s": 0.2})
    session = await server.session()
    status, body = await server.post(f"/{session}/v1/chat/completions", BODY)
    assert (status, body["error"]["code"]) == (503, "paused")
    assert "pause_limit_s = 0.2" in body["error"]["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"frequency_penalty": 0.5},
        {"seed": 3, "temperature": 1.0},
    ],
)
async def test_what_can_not_be_gone_on_from_begins_anew(rolltap_serve, rolltap_tokenizer, fields):
    backend = CutEngine(rolltap_tokenizer, "one two", [2])
    server = await rolltap_serve(backend)
    session = await server.session()
    status, body = await server.post(f"/{session}/v1/chat/completions", BODY | fields)
    assert (status, body["choices"][0]["message"]["content"]) == (200, "one two")
    assert [request.prompt_ids for request in backend.requests] == [tuple(backend.prompt)] * 2
    (node,) = await server.nodes(session)
    assert node["metadata"]["notes"] == ["the engine gave the generation up; it was begun anew"]
    assert "continued" not in node["metadata"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_ends_with_the_abort_is_an_error_and_marked(
    rolltap_serve, rolltap_tokenizer, stream
):
    backend = CutEngine(rolltap_tokenizer, "one two three", [2])
    server = await rolltap_serve(backend, model={"on_abort": "end"})
    session = await server.session()
    async with server.http.post(
        f"/{session}/v1/chat/completions", json={**BODY, "stream": stream}
    ) as response:
        text = await response.text()
    assert response.status == (200 if stream else 503)
    assert "generation_aborted" in text
    assert '"length"' not in text
    (node,) = await server.nodes(session)
    assert node["metadata"]["finish_reason"] == "abort"
    assert "can't be gone on from" in node["metadata"]["error"]


async def test_a_stream_that_can_not_go_on_ends(rolltap_serve, rolltap_tokenizer):
    backend = CutEngine(rolltap_tokenizer, "one two three", [2])
    server = await rolltap_serve(backend)
    body = {**BODY, "stream": True, "frequency_penalty": 0.5}
    async with server.http.post("/v1/chat/completions", json=body) as response:
        text = await response.text()
    assert "generation_aborted" in text
    assert "penalties" in text


class DyingEngine(CutEngine):
    """Breaks the connection where it would have given the generation up."""

    async def generate(self, request):
        async for delta in super().generate(request):
            if delta.finish_reason == "abort":
                raise ConnectionResetError("gone")
            yield delta


class FirstBackend:
    """Chooses the first of those that have not failed."""

    @hookimpl
    def select_backend(self, backends):
        return backends[0]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_whose_engine_dies_goes_on_at_another(rolltap_serve, rolltap_tokenizer, stream):
    dying, other = (
        DyingEngine(rolltap_tokenizer, "one two three", [3]),
        CutEngine(rolltap_tokenizer, "one two three"),
    )
    server = await rolltap_serve(dying, other, plugins=[FirstBackend()])
    session = await server.session()
    path = f"/{session}/v1/chat/completions"
    _, shown = await server.post(f"{path}/render", BODY)
    dying.prompt = other.prompt = shown["token_ids"]
    text = await ask(server, path, {**BODY, "stream": stream})
    assert "error" not in text
    (node,) = await server.nodes(session)
    assert node["tokens"] == dying.prompt + dying.ids[0]
    assert node["metadata"]["trainable"]
    assert node["metadata"]["notes"] == ["backend given-1 went on after given-0 was lost"]
    assert [len(backend.requests) for backend in (dying, other)] == [1, 1]


async def test_a_call_whose_engine_dies_fails_where_the_config_says_so(rolltap_serve, rolltap_tokenizer):
    dying, other = (
        DyingEngine(rolltap_tokenizer, "one two three", [3]),
        CutEngine(rolltap_tokenizer, "one two three"),
    )
    server = await rolltap_serve(dying, other, plugins=[FirstBackend()], model={"on_engine_loss": "fail"})
    status, body = await server.post("/v1/chat/completions", BODY)
    assert (status, body["error"]["code"]) == (502, "upstream_unreachable")
    assert other.requests == []


class TrainedEngine(TokenBackend):
    """Writes a token every two milliseconds until it is paused; each resume brings new weights."""

    parameters = None

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.version, self.paused, self.stops = 0, False, set()
        self.wrote = {}
        """The version that wrote each place of each session's sequence."""

    async def generate(self, request):
        stop, spans, start = asyncio.Event(), [], len(request.prompt_ids)
        self.stops.add(stop)
        try:
            for at in range(request.sampling.max_tokens):
                await asyncio.sleep(0.002)
                if stop.is_set():
                    yield TokenDelta(finish_reason="abort", weight_versions=spans)
                    return
                self.wrote[start + at, request.session] = self.version
                spans.append([at, at + 1, self.version])
                echo = list(request.prompt_ids) if at == 0 else None
                yield TokenDelta(token_ids=[400 + (start + at) % 50], logprobs=[-0.5], prompt_token_ids=echo)
            yield TokenDelta(finish_reason="length", weight_versions=spans)
        finally:
            self.stops.discard(stop)

    async def pause(self, mode):
        self.paused = True
        for stop in self.stops:
            stop.set()

    async def resume(self):
        self.version += 1
        self.paused = False

    async def is_paused(self):
        return self.paused


async def rollout(server, session):
    """Three turns of 40 tokens; each must be whole."""
    messages = [{"role": "user", "content": "go"}]
    for _ in range(3):
        body = {"messages": messages, "max_tokens": 40}
        status, answer = await server.post(f"/{session}/v1/chat/completions", body)
        assert status == 200, answer
        assert answer["usage"]["completion_tokens"] == 40
        assert answer["choices"][0]["finish_reason"] == "length"
        messages += [answer["choices"][0]["message"], {"role": "user", "content": "on"}]


async def test_random_pauses_over_many_sessions_lose_nothing(rolltap_serve, rolltap_tokenizer):
    """A trainer pauses and resumes while many sessions talk: every turn is whole, every token has its version."""
    engine = TrainedEngine(rolltap_tokenizer)
    server = await rolltap_serve(engine)
    sessions = [await server.session() for _ in range(20)]

    async def trainer():
        for _ in range(12):
            await asyncio.sleep(0.05)
            assert (await server.post("/admin/pause", {"mode": "abort"}))[0] == 200
            await asyncio.sleep(0.01)
            assert (await server.post("/admin/resume", {}))[0] == 200

    await asyncio.gather(trainer(), *(rollout(server, session) for session in sessions))
    continued = 0
    for session in sessions:
        (node,) = await server.nodes(session, versions="token")
        assert node["metadata"]["trainable"]
        generated = [at for at, token in enumerate(node["masked_tokens"]) if token != -100]
        assert len(generated) == 120
        assert [node["versions"][at] for at in generated] == [engine.wrote[at, session] for at in generated]
        continued += node["metadata"].get("continued", 0)
    assert continued > 0
