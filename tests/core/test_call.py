"""A call that is read by several: each gets all of it once, whenever it joined."""

import asyncio

import pytest

import rolltap
from rolltap import ChatRequest, Message, Sampling
from rolltap.call import Origin
from rolltap.server.state import PIPELINE, SESSIONS
from rolltap.testing import Reply, ScriptedChatBackend, ScriptedTokenBackend
from rolltap.types.chat import ToolChoice

CALL = 'Look here: <tool_call>\n{"name": "run", "arguments": {"cmd": "ls -l /tmp"}}\n</tool_call>'
TOOLS = ({"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}},)
ORIGIN = Origin(path="/p", body=b"hash")


class Began:
    """A call of a served pipeline, to be read step by step."""

    def __init__(self, server, backend, session):
        self.pipeline = server.app[PIPELINE]
        self.server, self.backend, self.session = server, backend, session

    def begin(self, *, n=1, retry=False, key=""):
        request = ChatRequest(
            messages=(Message(role="user", content="a"),),
            tools=TOOLS,
            tool_choice=ToolChoice(),
            sampling=Sampling(n=n),
            stream=True,
        )
        return self.pipeline.begin(request, self.session, ORIGIN._replace(retry=retry, idempotency_key=key))


@pytest.fixture
async def start(rolltap_serve, rolltap_tokenizer):
    async def start(*script, **options):
        backend = ScriptedTokenBackend(rolltap_tokenizer, script)
        server = await rolltap_serve(backend, **options)
        session = await server.app[SESSIONS].get(await server.session())
        return Began(server, backend, session)

    return start


def joined(deltas):
    """What deltas say, choice by choice; fragments put together."""
    said = {}
    for delta in deltas:
        choice = said.setdefault(delta.index, {"text": "", "calls": {}, "finish": []})
        choice["text"] += delta.text
        for call in delta.tool_calls:
            known = choice["calls"].setdefault(call.index, ["", "", ""])
            for at, value in enumerate((call.id, call.name, call.arguments)):
                known[at] += value or ""
        if delta.finish_reason is not None:
            choice["finish"].append(delta.finish_reason)
    return said


async def all_of(deltas):
    return [delta async for delta in deltas]


@pytest.mark.parametrize("chunk", [4, 1000])
@pytest.mark.parametrize("n", [1, 2])
async def test_one_that_joins_after_any_delta_gets_everything_once(start, chunk, n):
    began = await start(*[[Reply(text=CALL, chunk=chunk)] * n] * 100)
    count, step = 1, 0
    while step < count:
        key = f"join after {step}"
        call = began.begin(n=n, key=key)
        driver, got = call.deltas(), []
        got += [await anext(driver) for _ in range(step)]
        assert began.begin(n=n, key=key) is call
        late = asyncio.ensure_future(all_of(call.deltas()))
        await asyncio.sleep(0)
        got += await all_of(driver)
        expected = joined(got)
        assert joined(await late) == expected, step
        assert sorted(expected) == [*range(n)]
        for choice in expected.values():
            assert choice["text"] == "Look here:"
            assert [name for _, name, _ in choice["calls"].values()] == ["run"]
            assert choice["finish"] == ["tool_calls"]
        assert len(began.backend.calls) == step + 1
        count, step = len(got), step + 1


async def test_one_that_joins_while_it_is_recorded_gets_the_end_once(start):
    class Slow:
        def __init__(self):
            self.reached, self.go_on = asyncio.Event(), asyncio.Event()

        @rolltap.hookimpl
        async def record_node(self, node):
            self.reached.set()
            await self.go_on.wait()

    slow = Slow()
    began = await start("Held back: <tool", plugins=[slow])
    call = began.begin()
    first = asyncio.ensure_future(all_of(call.deltas()))
    await slow.reached.wait()
    second = asyncio.ensure_future(all_of(began.begin().deltas()))
    await asyncio.sleep(0)
    slow.go_on.set()
    assert joined(await first)[0]["text"] == "Held back: <tool"
    assert joined(await second) == joined(await first)


async def test_one_that_nobody_reads_is_over_and_asked_again(start):
    began = await start("Hi.")
    call = began.begin()
    call.abandon()
    assert not began.session.calls
    again = began.begin()
    assert again is not call
    assert joined(await all_of(again.deltas()))[0]["text"] == "Hi."


async def test_abandoning_one_that_is_read_does_not_end_it(start):
    began = await start(Reply(text="One two three", delay_s=0.01))
    call = began.begin()
    driver = call.deltas()
    got = [await anext(driver)]
    call.abandon()
    assert began.begin() is call
    got += await all_of(driver)
    assert joined(got)[0]["text"] == "One two three"


async def test_sealing_lets_it_end(start):
    began = await start(Reply(text="One two three", delay_s=0.01))
    call = began.begin()
    reading = asyncio.ensure_future(all_of(call.deltas()))
    await asyncio.sleep(0.02)
    sealed = await began.session.seal()
    assert reading.done() or (await reading)
    assert sealed.snapshot == began.session.record.digest()
    assert began.session.record.num_calls == 1


async def test_a_converter_that_fails_leaves_no_call_in_flight(rolltap_serve, rolltap_tokenizer):
    class Broken(rolltap.MessageConverter):
        dialect = "broken"

        def decode(self, body):
            return ChatRequest(messages=(Message(role="user", content="a"),), stream=True)

        def encode(self, request, completion):
            return {}

        def stream(self, request, completion):
            raise ValueError("no encoder today")

        def error(self, info, request_id):
            return rolltap.ErrorReply(status=info.status, body={"error": info.message})

    class Plugin:
        @rolltap.hookimpl
        def message_converter(self, dialect):
            return Broken() if dialect == "broken" else None

        @rolltap.hookimpl
        def register_routes(self, app):
            rolltap.add_dialect(app, "broken", "/broken")

    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer), plugins=[Plugin()])
    session = await server.session()
    status, answer = await server.post(f"/{session}/broken", {})
    assert (status, "no encoder today" in str(answer)) == (500, True)
    async with asyncio.timeout(5):
        status, sealed = await server.post(f"/{session}/seal", {})
    assert (status, sealed["state"]) == (200, "sealed")


@pytest.mark.parametrize("at", [0, 1])
async def test_one_that_joins_between_the_last_deltas_is_told_every_ending(start, at):
    began = await start([Reply(text="One.", chunk=100), Reply(text="Two.", chunk=100)])
    call, got = began.begin(n=2), []
    async for delta in call.deltas():
        got.append(delta)
        if delta.finish_reason is not None and delta.index == at:
            assert joined(await all_of(began.begin(n=2).deltas())) == {
                number: {"text": text, "calls": {}, "finish": ["stop"]}
                for number, text in enumerate(["One.", "Two."])
            }
    assert len(began.backend.calls) == 1


async def test_one_that_joins_a_text_backends_last_delta_gets_it_once(rolltap_serve):
    class Slow:
        def __init__(self):
            self.reached, self.go_on = asyncio.Event(), asyncio.Event()

        @rolltap.hookimpl
        async def record_node(self, node):
            self.reached.set()
            await self.go_on.wait()

    slow = Slow()
    last = rolltap.ChatDelta(text=" And more.", finish_reason="stop", extra={"seen": ["x"]})
    backend = ScriptedChatBackend([[rolltap.ChatDelta(text="Hi."), last]])
    server = await rolltap_serve(backend, plugins=[slow])
    session = await server.app[SESSIONS].get(await server.session())
    began = Began(server, backend, session)
    first = asyncio.ensure_future(all_of(began.begin().deltas()))
    await slow.reached.wait()
    second = asyncio.ensure_future(all_of(began.begin().deltas()))
    await asyncio.sleep(0)
    slow.go_on.set()
    assert joined(await first)[0]["text"] == joined(await second)[0]["text"] == "Hi. And more."
    assert [delta.extra["seen"] for delta in await second if delta.extra] == [["x"]]
    assert len(backend.requests) == 1
