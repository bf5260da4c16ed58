"""Several backends: routing, failures, cool-down, limits, chat backends beside token backends."""

import asyncio

import aiohttp
import pytest

import rolltap
from rolltap import ChatDelta, ToolCall, ToolCallDelta, Usage
from rolltap.server.state import MODELS
from rolltap.testing import Reply, ScriptedChatBackend, ScriptedTokenBackend

USER = {"role": "user", "content": "a"}
CHAT = {"messages": [USER]}
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {}}}]


class Refusing(ScriptedTokenBackend):
    """An engine that nobody listens at, until it is `up`."""

    up = False

    def _next(self, prompt_ids, sampling):
        if not self.up:
            raise aiohttp.ClientConnectionError("connection refused")
        return super()._next(prompt_ids, sampling)


def answering(tokenizer, text="Hi."):
    return ScriptedTokenBackend(tokenizer, lambda ids, sampling: text)


async def test_a_backend_that_is_down_is_a_502_and_changes_nothing(rolltap_serve, rolltap_tokenizer):
    server = await rolltap_serve(Refusing(rolltap_tokenizer))
    session = await server.session()
    status, body = await server.post(f"/{session}/v1/chat/completions", CHAT)
    assert (status, body["error"]["code"]) == (502, "upstream_unreachable")
    assert await server.nodes(session) == []
    async with server.http.get("/health") as response:
        (backend,) = (await response.json())["backends"]
    assert backend["healthy"] is False
    assert backend["last_error"]


async def test_another_backend_answers_and_the_failing_one_is_tried_again(rolltap_serve, rolltap_tokenizer):
    down = Refusing(rolltap_tokenizer, lambda ids, sampling: "Back.")
    up = answering(rolltap_tokenizer)
    server = await rolltap_serve(down, up)
    for _ in range(3):
        status, body = await server.post("/v1/chat/completions", CHAT)
        assert (status, body["choices"][0]["message"]["content"]) == (200, "Hi.")
    handle = server.app[MODELS].default.backends[0]
    assert not handle.view.healthy
    down.up = True
    handle._retry_at = 0.0
    status, body = await server.post("/v1/chat/completions", CHAT)
    assert body["choices"][0]["message"]["content"] == "Back."
    assert handle.view.healthy


@pytest.mark.parametrize("others", [1, 0])
async def test_a_rate_limit_is_left_for_the_next_backend_and_told_of_where_there_is_none(
    rolltap_serve, rolltap_tokenizer, others
):
    class Limited(ScriptedTokenBackend):
        def _next(self, prompt_ids, sampling):
            raise rolltap.UpstreamError("slow down", status=429, headers={"retry-after": "7"})

    class InOrder:
        @rolltap.hookimpl
        def select_backend(self, backends):
            return backends[0]

    backends = [Limited(rolltap_tokenizer), *[answering(rolltap_tokenizer)] * others]
    server = await rolltap_serve(*backends, plugins=[InOrder()])
    async with server.http.post("/v1/chat/completions", json=CHAT) as response:
        assert (response.status, response.headers.get("retry-after")) == (
            (200, None) if others else (429, "7")
        )
    assert server.app[MODELS].default.backends[0].view.healthy


async def test_a_client_error_of_the_engine_is_not_tried_elsewhere(rolltap_serve, rolltap_tokenizer):
    class Strict(ScriptedTokenBackend):
        def _next(self, prompt_ids, sampling):
            raise rolltap.UpstreamError("bad guided regex", status=400)

    class First:
        @rolltap.hookimpl
        def select_backend(self, backends):
            return backends[0]

    other = answering(rolltap_tokenizer)
    server = await rolltap_serve(Strict(rolltap_tokenizer), other, plugins=[First()])
    status, body = await server.post("/v1/chat/completions", CHAT)
    assert (status, body["error"]["message"]) == (400, "bad guided regex")
    assert other.calls == []
    assert server.app[MODELS].default.backends[0].view.healthy


async def test_a_session_stays_at_its_backend(rolltap_serve, rolltap_tokenizer):
    backends = [answering(rolltap_tokenizer) for _ in range(3)]
    server = await rolltap_serve(*backends)
    session = await server.session()
    for _ in range(6):
        await server.post(f"/{session}/v1/chat/completions", CHAT)
    assert sorted(len(backend.calls) for backend in backends) == [0, 0, 6]


async def test_a_pinned_base_url_is_kept(rolltap_serve, rolltap_tokenizer):
    backends = [answering(rolltap_tokenizer) for _ in range(2)]
    tables = [
        {"kind": "given", "number": number, "url": f"http://engine{number}:8000/"} for number in range(2)
    ]
    server = await rolltap_serve(*backends, model={"backends": tables})
    for _ in range(4):
        session = await server.session(base_url="http://engine1:8000")
        await server.post(f"/{session}/v1/chat/completions", CHAT)
    assert [len(backend.calls) for backend in backends] == [0, 4]
    status, body = await server.post("/sessions/create", {"base_url": "http://engine2:8000"})
    assert status == 404
    assert "http://engine0:8000, http://engine1:8000" in body["error"]["message"]


async def test_more_than_max_in_flight_wait_and_more_than_max_queued_are_refused(
    rolltap_serve, rolltap_tokenizer
):
    slow = ScriptedTokenBackend(rolltap_tokenizer, lambda ids, sampling: Reply(text="Hi there", delay_s=0.05))
    server = await rolltap_serve(slow, config={"server": {"max_in_flight": 1, "max_queued": 1}})
    calls = []
    for _ in range(3):
        calls.append(asyncio.ensure_future(server.post("/v1/chat/completions", CHAT)))
        await asyncio.sleep(0.03)
    statuses = [status for status, _ in await asyncio.gather(*calls)]
    assert statuses == [200, 200, 429]


async def test_a_timeout_is_a_504(rolltap_serve, rolltap_tokenizer):
    slow = ScriptedTokenBackend(rolltap_tokenizer, [Reply(text="Hi there, slow one", delay_s=0.2)])
    server = await rolltap_serve(slow, config={"server": {"request_timeout_s": 0.3}})
    status, body = await server.post("/v1/chat/completions", CHAT)
    assert (status, body["error"]["code"]) == (504, "timeout")


class TestChatBackends:
    async def test_text_is_recorded_and_never_trainable(self, rolltap_serve, openai_client):
        backend = ScriptedChatBackend(["One.", "Two."])
        server = await rolltap_serve(backend)
        session = await server.session()
        client = openai_client(server, session)
        messages = [dict(USER)]
        answer = await client.chat.completions.create(model="test-model", messages=messages)
        assert answer.choices[0].message.content == "One."
        messages += [{"role": "assistant", "content": "One."}, {"role": "user", "content": "b"}]
        await client.chat.completions.create(model="test-model", messages=messages)
        (node,) = await server.nodes(session)
        assert (node["tokens"], node["masked_tokens"], node["logprobs"]) == ([], [], [])
        assert node["metadata"]["trainable"] is False
        assert "text-only" in node["metadata"]["untrainable_reason"]
        for text in ("a", "One.", "b", "Two."):
            assert text in node["full_text"]
        assert [message.text for message in backend.requests[1].messages] == ["a", "One.", "b"]

    @pytest.mark.parametrize("stream", [False, True])
    async def test_an_upstreams_further_fields_reach_the_client(self, rolltap_serve, openai_client, stream):
        deltas = [
            ChatDelta(
                text="One", extra={"annotations": [{"url": "u"}]}, reply_extra={"system_fingerprint": "fp"}
            ),
            ChatDelta(text="."),
            ChatDelta(finish_reason="stop", reply_extra={"citations": ["c"]}),
        ]
        client = openai_client(await rolltap_serve(ScriptedChatBackend([deltas])))
        ask = {"model": "test-model", "messages": [USER]}
        if stream:
            chunks = [chunk async for chunk in await client.chat.completions.create(**ask, stream=True)]
            fingerprints = [chunk.system_fingerprint for chunk in chunks if chunk.system_fingerprint]
            citations = [chunk.citations for chunk in chunks if hasattr(chunk, "citations")]
            (message,) = [c.choices[0].delta for c in chunks if hasattr(c.choices[0].delta, "annotations")]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        else:
            answer = await client.chat.completions.create(**ask)
            fingerprints, citations = [answer.system_fingerprint], [answer.citations]
            message = answer.choices[0].message
            text = message.content
        assert (text, fingerprints, citations) == ("One.", ["fp"], [["c"]])
        assert message.model_dump()["annotations"][0]["url"] == "u"

    @pytest.mark.parametrize("stream", [False, True])
    async def test_calls_whole_and_in_fragments(self, rolltap_serve, openai_client, stream):
        backend = ScriptedChatBackend(
            [
                [
                    ChatDelta(reasoning="Hm."),
                    ChatDelta(text="Look: "),
                    ChatDelta(tool_calls=[ToolCall("search", '{"q": 1}')]),
                    ChatDelta(tool_calls=[ToolCallDelta(index=1, id="own", name="search", arguments='{"q"')]),
                    ChatDelta(tool_calls=[ToolCallDelta(index=1, arguments=": 2}")]),
                    ChatDelta(finish_reason="tool_calls", usage=Usage(prompt_tokens=3, completion_tokens=9)),
                ]
            ]
        )
        server = await rolltap_serve(backend)
        client = openai_client(server, await server.session())
        ask = {"model": "test-model", "messages": [USER], "tools": TOOLS}
        if stream:
            async with client.chat.completions.stream(**ask) as events:
                async for _ in events:
                    pass
                answer = await events.get_final_completion()
        else:
            answer = await client.chat.completions.create(**ask)
            assert answer.usage.completion_tokens == 9
        (choice,) = answer.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Look: "
        first, second = choice.message.tool_calls
        assert first.id.startswith("call_")
        assert second.id == "own"
        assert [call.function.arguments for call in (first, second)] == ['{"q": 1}', '{"q": 2}']

    async def test_raw_text_is_read_by_the_models_parsers(self, rolltap_serve, openai_client):
        class Raw(ScriptedChatBackend):
            raw_text = True

        raw = 'Look. <tool_call>{"name": "search", "arguments": {}}</tool_call>'
        deltas = [ChatDelta(text=letter) for letter in raw]
        server = await rolltap_serve(Raw([[*deltas, ChatDelta(finish_reason="stop")]]))
        answer = await openai_client(server).chat.completions.create(
            model="test-model", messages=[USER], tools=TOOLS
        )
        (choice,) = answer.choices
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Look.")
        assert choice.message.tool_calls[0].function.name == "search"

    async def test_an_answer_that_just_stops_is_finished(self, rolltap_serve):
        call = ChatDelta(tool_calls=[ToolCall("search", "{}")])
        server = await rolltap_serve(ScriptedChatBackend([[ChatDelta(text="Hi")], [call]]))
        for finish in ("stop", "tool_calls"):
            _, body = await server.post("/v1/chat/completions", {**CHAT, "tools": TOOLS})
            assert body["choices"][0]["finish_reason"] == finish

    @pytest.mark.parametrize("explicitly", [False, True])
    async def test_no_answer_at_all_is_a_bad_gateway(self, rolltap_serve, explicitly):
        class Silent(ScriptedChatBackend):
            ends_explicitly = explicitly

        server = await rolltap_serve(Silent([[]]))
        status, body = await server.post("/v1/chat/completions", CHAT)
        assert (status, body["error"]["code"]) == (502, "bad_upstream_response")

    async def test_an_answer_without_its_end_is_a_bad_gateway(self, rolltap_serve):
        class Explicit(ScriptedChatBackend):
            ends_explicitly = True

        server = await rolltap_serve(Explicit([[ChatDelta(text="Hi")]]))
        session = await server.session()
        status, body = await server.post(f"/{session}/v1/chat/completions", CHAT)
        assert (status, body["error"]["code"]) == (502, "bad_upstream_response")
        assert await server.nodes(session) == []

    async def test_raw_prompts_and_render_are_refused(self, rolltap_serve):
        server = await rolltap_serve(ScriptedChatBackend([]))
        for path, body in [("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions/render", CHAT)]:
            status, answer = await server.post(path, body)
            assert status == 400
            assert "test-model" in answer["error"]["message"]

    async def test_token_and_chat_nodes_do_not_mix(self, rolltap_serve, rolltap_tokenizer):
        token = ScriptedTokenBackend(rolltap_tokenizer, lambda ids, sampling: "One.")
        chat = ScriptedChatBackend(["Two."])
        turn = iter([0, 1, 0])

        class Turns:
            @rolltap.hookimpl
            def select_backend(self, backends):
                return backends[next(turn)]

        server = await rolltap_serve(token, chat, plugins=[Turns()], model={"tokenizer": rolltap_tokenizer})
        session = await server.session()
        messages = [USER]
        for answer in ("One.", "Two.", "One."):
            status, body = await server.post(f"/{session}/v1/chat/completions", {"messages": messages})
            assert (status, body["choices"][0]["message"]["content"]) == (200, answer)
            messages = [*messages, {"role": "assistant", "content": answer}, USER]
        trainable = [node["metadata"]["trainable"] for node in await server.nodes(session)]
        assert trainable == [True, False]
        sent = token.calls[1].prompt_ids
        assert sent[: len(token.calls[0].prompt_ids)] == token.calls[0].prompt_ids


@pytest.mark.parametrize(("explicitly", "status"), [(False, 200), (True, 502)])
async def test_tokens_that_just_stop(rolltap_serve, rolltap_tokenizer, explicitly, status):
    class Stopping(rolltap.TokenBackend):
        tokenizer = rolltap_tokenizer
        ends_explicitly = explicitly

        async def generate(self, request):
            yield rolltap.TokenDelta(token_ids=[72, 73], logprobs=[-0.1, -0.2])

    server = await rolltap_serve(Stopping())
    session = await server.session()
    got, body = await server.post(f"/{session}/v1/chat/completions", CHAT)
    assert got == status
    nodes = await server.nodes(session)
    assert len(nodes) == (1 if status == 200 else 0)
    if nodes:
        assert body["choices"][0]["finish_reason"] == "stop"
        assert nodes[0]["logprobs"][-2:] == [-0.1, -0.2]


async def test_recorders_are_told_and_never_fail_a_request(rolltap_serve, rolltap_tokenizer):
    told = []

    class Recorder:
        @rolltap.hookimpl
        async def record_node(self, session, node):
            told.append((session.metadata, node.full_text, node.tokens, node.metadata["trainable"]))

    class Broken:
        @rolltap.hookimpl
        def record_node(self, node):
            raise RuntimeError("disk full")

    backend = answering(rolltap_tokenizer)
    server = await rolltap_serve(backend, plugins=[Recorder(), Broken()])
    session = await server.session(metadata={"task": 1})
    status, _ = await server.post(f"/{session}/v1/chat/completions", CHAT)
    assert status == 200
    ((metadata, text, tokens, trainable),) = told
    assert metadata == {"task": 1}
    assert text.endswith("Hi.<|im_end|>")
    assert tokens == backend.calls[0].prompt_ids + backend.calls[0].output_ids[0]
    assert trainable is True


@pytest.mark.parametrize("hook", ["select_backend", "tool_parser"])
async def test_a_hook_that_raises_is_named_and_harms_no_session(rolltap_serve, rolltap_tokenizer, hook):
    def raises(self):
        raise ValueError("oh no")

    def raises_with_tools(self, tools):
        if tools:  # not at start, where parsers are looked for
            raise ValueError("oh no")

    broken = raises_with_tools if hook == "tool_parser" else raises
    broken.__name__ = hook
    plugin = type("Oops", (), {hook: rolltap.hookimpl(broken)})()
    server = await rolltap_serve(answering(rolltap_tokenizer), plugins=[plugin])
    status, body = await server.post("/v1/chat/completions", {**CHAT, "tools": TOOLS})
    assert status == 500
    for word in ("Oops", hook, "oh no"):
        assert word in body["error"]["message"]
