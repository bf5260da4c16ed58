"""A plugin that fails is named, in the answer, the log and a counter; what is not its fault goes on."""

import asyncio
import logging
import time

import pytest

import rolltap
from rolltap import ChatDelta, ErrorInfo, TokenDelta
from rolltap.backend_handle import BackendHandle
from rolltap.testing import ScriptedChatBackend, ScriptedTokenBackend

TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}
PATH = "/v1/chat/completions"


def plugin(**hooks):
    """An instance of a class named Mine with these hooks."""
    marked = {name: staticmethod(rolltap.hookimpl(function)) for name, function in hooks.items()}
    return type("Mine", (), marked)()


async def health(server):
    async with server.http.get("/health") as response:
        return await response.json()


def raises(*_):
    raise ValueError("no such thing")


async def hangs():
    await asyncio.Event().wait()


class Parser(rolltap.ToolParser):
    """A parser that is in order; those below are not."""

    def feed(self, text):
        return [text]

    def finish(self):
        return []


class Fallback:
    """Answers for the parser where a test is about something else."""

    @rolltap.hookimpl
    def tool_parser(self, name):
        return Parser if name == "mine" else None


class RaisingParser(Parser):
    def feed(self, text):
        raise KeyError("oops")


class SilentParser(Parser):
    def feed(self, text):
        return None


class OddParser(Parser):
    def finish(self):
        return [{"name": "search"}]


class UnmakeableParser(Parser):
    def __init__(self, tools):
        super().__init__()


class RaisingThinking(rolltap.TagReasoningParser):
    open, close = "<a>", "</a>"

    def begin(self, prompt_tail):
        raise KeyError("oops")


REQUESTS = {
    "a hook that raises": (
        plugin(select_backend=raises),
        "Mine: select_backend raised ValueError: no such thing",
    ),
    "a hook that hangs": (
        plugin(select_backend=hangs),
        "Mine: select_backend took longer than [plugins] time_limit_s = 0.2",
    ),
    "a hook with a wrong answer": (
        plugin(select_backend=lambda: "given-0"),
        "Mine: select_backend answered with a value of type str; it must be one of the backends it was given, or None",
    ),
    "a foreign backend": (
        plugin(
            select_backend=lambda: (
                BackendHandle(ScriptedChatBackend(), name="other", kind="given", model="another").view
            )
        ),
        "Mine: select_backend chose other of another, which is none of: given-0",
    ),
    "a parser that raises": (
        plugin(tool_parser=lambda: RaisingParser),
        "Mine: RaisingParser.feed failed: KeyError: 'oops'",
    ),
    "a parser that returns nothing": (
        plugin(tool_parser=lambda: SilentParser),
        "Mine: SilentParser.feed failed: TypeError: it returned a value of type NoneType; it must return a list",
    ),
    "a parser that gives something else": (
        plugin(tool_parser=lambda: OddParser),
        "Mine: OddParser.finish failed: TypeError: it gave a value of type dict; its list may hold str and ToolCall",
    ),
    "a parser that can't be made": (
        plugin(tool_parser=lambda: UnmakeableParser),
        "Mine: its tool_parser 'mine' can't be made: TypeError: UnmakeableParser.__init__() missing 1 required ",
    ),
    "a function that makes something else": (
        plugin(tool_parser=lambda: lambda: 7),
        "Mine: what it gave for the tool_parser 'mine' made a value of type int, which is none",
    ),
    "a reasoning parser that raises": (
        plugin(tool_parser=lambda: Parser, reasoning_parser=lambda: RaisingThinking),
        "Mine: RaisingThinking.begin failed: KeyError: 'oops'",
    ),
}


@pytest.mark.parametrize("case", REQUESTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_a_plugin_spoils_names_it(
    rolltap_serve, rolltap_tokenizer, caplog, case, stream
):
    mine, message = REQUESTS[case]
    backend = ScriptedTokenBackend(rolltap_tokenizer, lambda ids, sampling: "Hello.")
    server = await rolltap_serve(
        backend,
        plugins=[Fallback(), mine],
        config={"plugins": {"time_limit_s": 0.2}},
        model={"tool_parser": "mine", "reasoning_parser": "think"},
    )
    session = await server.session()
    async with server.http.post(f"/{session}{PATH}", json={**CHAT, "stream": stream}) as response:
        text = await response.text()
        assert response.status in ({200, 500} if stream else {500})
    assert message in text.replace("\\", "")
    assert "plugin_error" in text
    assert (await health(server))["plugin_failures"] == {"Mine": 1}
    assert [record for record in caplog.records if record.levelno == logging.ERROR], "it is logged"
    assert await server.nodes(session) == []
    (state,) = (await health(server))["backends"]
    assert state["healthy"], "not the backend's fault"


class NotGenerating(rolltap.ChatBackend):
    async def chat(self, request):
        return [ChatDelta(text="a")]


class Misspelling(rolltap.ChatBackend):
    async def chat(self, request):
        yield "a"


class Raising(rolltap.ChatBackend):
    async def chat(self, request):
        yield ChatDelta(text=request.messages[0].nothing)


class Hanging(rolltap.ChatBackend):
    async def chat(self, request):
        yield ChatDelta(text="a")
        await hangs()


class Mistaken(rolltap.TokenBackend):
    async def generate(self, request):
        yield ChatDelta(text="a")


class Patient(rolltap.ChatBackend):
    async def chat(self, request):
        await asyncio.sleep(0.01)
        yield ChatDelta(text="a")
        yield ChatDelta(finish_reason="stop")


@pytest.mark.parametrize(
    ("backend", "status", "message"),
    [
        (
            NotGenerating(),
            500,
            "its backend answered with a value of type coroutine; it must be an async generator, ",
        ),
        (Misspelling(), 500, "its backend yielded a value of type str; it must yield ChatDelta"),
        (Mistaken(), 500, "its backend yielded a value of type ChatDelta; it must yield TokenDelta"),
        (
            Raising(),
            500,
            "backend given-0 (plugin GivenBackends) raised AttributeError: 'Message' object has no attribute 'nothing'",
        ),
        (Hanging(), 504, "its backend was silent for [plugins] backend_time_limit_s = 0.2"),
    ],
)
async def test_a_backend_that_is_wrong_is_named(
    rolltap_serve, rolltap_tokenizer, caplog, backend, status, message
):
    server = await rolltap_serve(
        backend,
        config={"plugins": {"backend_time_limit_s": 0.2}},
        model={"tokenizer": rolltap_tokenizer},
    )
    got, answer = await server.post(PATH, CHAT)
    assert (got, message in answer["error"]["message"]) == (status, True), answer
    assert "GivenBackends" in caplog.text
    if status == 500:
        assert (await health(server))["plugin_failures"] == {"GivenBackends": 1}


async def test_a_backends_time_limit_is_between_its_deltas(rolltap_serve):
    server = await rolltap_serve(Patient(), config={"plugins": {"backend_time_limit_s": 5}})
    status, answer = await server.post(PATH, CHAT)
    assert status == 200, answer
    assert answer["choices"][0]["message"]["content"] == "a"


async def test_an_error_of_the_backends_own_that_is_a_timeout_stays_one(rolltap_serve):
    backend = ScriptedChatBackend([[TimeoutError("the provider's own")]])
    server = await rolltap_serve(backend, config={"plugins": {"backend_time_limit_s": 5}})
    status, answer = await server.post(PATH, CHAT)
    assert status == 504
    assert "the provider's own" in answer["error"]["message"]


async def test_a_parser_of_a_wrong_type_ends_the_start(rolltap_serve):
    mine = plugin(tool_parser=lambda: dict)
    with pytest.raises(
        rolltap.PluginError, match=r"^Mine: tool_parser answered with the class dict; it must be a Too"
    ):
        await rolltap_serve(ScriptedChatBackend(), plugins=[mine])


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (raises, "Mine: classify_error raised ValueError: no such thing"),
        (
            lambda: "429",
            "Mine: classify_error answered with a value of type str; it must be an ErrorInfo, or None",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_classifier_that_fails_hides_no_error(rolltap_serve, hook, said, stream):
    backend = ScriptedChatBackend([[ChatDelta(text="a"), RuntimeError("the real cause")]])
    server = await rolltap_serve(backend, plugins=[plugin(classify_error=hook)])
    async with server.http.post(PATH, json={**CHAT, "stream": stream}) as response:
        text = await response.text()
    assert said in text
    assert "it was asked about RuntimeError: the real cause" in text
    assert (await health(server))["plugin_failures"]["Mine"] == 1


async def test_recorders_never_fail_a_request(rolltap_serve, rolltap_tokenizer, caplog):
    told = []
    backend = ScriptedTokenBackend(rolltap_tokenizer, ["Hello."])
    server = await rolltap_serve(
        backend,
        plugins=[
            plugin(record_node=lambda node: told.append(node.node_id)),
            plugin(record_node=raises),
            plugin(record_node=hangs),
        ],
        config={"plugins": {"time_limit_s": 0.1}},
    )
    session = await server.session()
    status, _ = await server.post(f"/{session}{PATH}", CHAT)
    assert status == 200
    assert told == [node["metadata"]["node_id"] for node in await server.nodes(session)]
    assert (await health(server))["plugin_failures"] == {"Mine-2": 1, "Mine-3": 1}
    assert "plugin Mine-2 failed in record_node" in caplog.text
    assert "plugin Mine-3 failed in record_node" in caplog.text


async def test_a_hook_that_holds_up_the_loop_is_named(rolltap_serve, caplog):
    def slow():
        time.sleep(0.3)

    backend = ScriptedChatBackend(["One.", "Two."])
    server = await rolltap_serve(backend, plugins=[plugin(select_backend=slow)])
    status, _ = await server.post(PATH, CHAT)
    assert status == 200
    assert (await health(server))["plugin_blocking"] == {"Mine": 1}
    assert "plugin Mine held up every request for 0.3" in caplog.text
    assert "in select_backend; make it a coroutine function that awaits" in caplog.text


async def test_waiting_is_no_blocking_and_starting_may_take_long(rolltap_serve, caplog):
    async def waits():
        await asyncio.sleep(0.3)

    def takes_long(kind):
        time.sleep(0.3)

    mine = plugin(select_backend=waits, create_backend=takes_long)
    server = await rolltap_serve(ScriptedChatBackend(["One."]), plugins=[mine])
    assert (await server.post(PATH, CHAT))[0] == 200
    assert (await health(server))["plugin_blocking"] == {}
    assert "held up" not in caplog.text


async def test_no_limit_means_none(rolltap_serve):
    async def waits(backends):
        await asyncio.sleep(0.05)
        return backends[0]

    server = await rolltap_serve(
        ScriptedChatBackend(["One."]),
        plugins=[plugin(select_backend=waits)],
        config={"plugins": {"time_limit_s": 0}},
    )
    assert (await server.post(PATH, CHAT))[0] == 200


async def test_a_plugins_own_timeout_is_not_taken_for_the_limit(rolltap_serve):
    async def times_out():
        raise TimeoutError("its database")

    server = await rolltap_serve(ScriptedChatBackend(), plugins=[plugin(select_backend=times_out)])
    _, answer = await server.post(PATH, CHAT)
    assert answer["error"]["message"] == "Mine: select_backend raised TimeoutError: its database"


async def test_a_classifiers_own_answer_may_be_an_error_of_ours(rolltap_serve):
    def refuses(error):
        raise rolltap.BadRequest(f"your fault: {error}", code="yours")

    backend = ScriptedChatBackend([[RuntimeError("x")]])
    server = await rolltap_serve(backend, plugins=[plugin(classify_error=refuses)])
    status, answer = await server.post(PATH, CHAT)
    assert (status, answer["error"]["code"], answer["error"]["message"]) == (400, "yours", "your fault: x")


async def test_what_a_classifier_says_is_what_the_client_is_told(rolltap_serve):
    info = ErrorInfo(status=418, message="a teapot", code="teapot")
    backend = ScriptedChatBackend([[RuntimeError("x")]])
    server = await rolltap_serve(backend, plugins=[plugin(classify_error=lambda: info)])
    status, answer = await server.post(PATH, CHAT)
    assert (status, answer["error"]["message"]) == (418, "a teapot")


async def test_nothing_of_this_is_in_the_way_of_a_good_token_backend(rolltap_serve, rolltap_tokenizer):
    class Good(rolltap.TokenBackend):
        async def generate(self, request):
            yield TokenDelta(token_ids=[5], logprobs=[-0.5], finish_reason="stop")

    server = await rolltap_serve(Good(), model={"tokenizer": rolltap_tokenizer})
    assert (await server.post(PATH, CHAT))[0] == 200
    assert (await health(server))["plugin_failures"] == {}
