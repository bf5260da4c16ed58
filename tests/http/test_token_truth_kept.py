"""What must reach the record whatever happens meanwhile, and what of it must be reachable."""

import asyncio
import base64
import json
from urllib.parse import urlsplit

import pytest

from rolltap import ChatDelta, hookimpl
from rolltap.server.state import PIPELINE
from rolltap.testing import Reply, ScriptedChatBackend, ScriptedTokenBackend
from rolltap.testing.tokenizers import FAMILIES
from rolltap_plugins.stores.memory import MemoryStore

USER = {"role": "user", "content": "a"}
CHAT = {"messages": [USER]}


class SlowStore(MemoryStore):
    """Takes its time to store nodes, as a disk or a network may."""

    def __init__(self) -> None:
        super().__init__()
        self.storing = asyncio.Event()
        self.go_on = asyncio.Event()

    async def append(self, session, entry):
        if type(entry).__name__ == "CallRecorded":
            self.storing.set()
            await self.go_on.wait()
        return await super().append(session, entry)

    @hookimpl
    def create_store(self, kind, options):
        return self if kind == "slow" else None


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_its_call_is_stored_leaves_it_whole(
    rolltap_serve, rolltap_tokenizer, stream
):
    backend = ScriptedTokenBackend(rolltap_tokenizer, ["One.", "Two."])
    store = SlowStore()
    server = await rolltap_serve(backend, plugins=[store], config={"store": {"kind": "slow"}})
    session = await server.session()
    call = asyncio.ensure_future(
        server.http.post(f"/{session}/v1/chat/completions", json={**CHAT, "stream": stream})
    )
    await store.storing.wait()
    if stream:
        (await call).close()
    else:
        call.cancel()
    await asyncio.sleep(0.1)
    store.go_on.set()
    async with asyncio.timeout(5):
        while not await server.nodes(session):  # noqa: ASYNC110 - it is recorded in the background
            await asyncio.sleep(0.02)
    await server.app[PIPELINE].close()
    (node,) = await server.nodes(session)
    assert node["metadata"]["delivery"] == "aborted"
    (call,) = backend.calls
    assert node["tokens"] == call.prompt_ids + call.output_ids[0]
    assert node["metadata"]["trainable"]
    assert (
        len([entry for _, entry in await store.read(session) if type(entry).__name__ == "CallRecorded"]) == 1
    )


@pytest.fixture
async def start(rolltap_serve, rolltap_tokenizer):
    async def begin(*script, **options):
        backend = ScriptedTokenBackend(rolltap_tokenizer, script)
        server = await rolltap_serve(backend, **options)
        return server, backend, await server.session()

    return begin


async def chat(server, session, *messages, **options):
    status, body = await server.post(f"/{session}/v1/chat/completions", {"messages": messages, **options})
    assert status == 200, body
    return [choice["message"] for choice in body["choices"]]


async def test_the_very_ids_that_the_engine_returned_are_sent_again(start):
    server, backend, session = await start("placeholder", "Two.")
    odd = [backend.encode(letter)[0] for letter in "weather"] + backend.encode("<|im_end|>")
    backend._script = iter([Reply(ids=odd), "Two."])
    (message,) = await chat(server, session, USER)
    await chat(server, session, USER, message, USER)
    first, second = backend.calls
    assert second.prompt_ids[: len(first.prompt_ids) + len(odd)] == first.prompt_ids + odd
    (node,) = await server.nodes(session)
    assert node["tokens"] == second.prompt_ids + second.output_ids[0]


async def test_what_the_engine_returns_beside_the_tokens_is_kept_and_reachable(start):
    extras = [
        {"routed_experts": bytes([index, 255]), "sampling_mask": bytes([7, index])} for index in range(2)
    ]
    server, _, session = await start([Reply(text="a", extras=extra) for extra in extras], "Plain.")
    await chat(server, session, USER, n=2)
    for node, extra in zip(await server.nodes(session), extras, strict=True):
        for name, data in extra.items():
            assert base64.b64decode(node["metadata"][name]) == data
    await chat(server, session, {"role": "user", "content": "b"})
    assert not {"routed_experts", "sampling_mask"} & (await server.nodes(session))[-1]["metadata"].keys()


async def test_the_sampling_that_applied_is_recorded_over_what_was_asked(start):
    applied = {"temperature": 0.5, "max_tokens": 9, "top_p": 1.0}
    server, _, session = await start(Reply(text="a", extras={"sampling": applied}), "Plain.")
    await chat(server, session, USER, max_tokens=5000, seed=3)
    await chat(server, session, {"role": "user", "content": "b"}, max_tokens=5000)
    one, two = [node["metadata"]["sampling"] for node in await server.nodes(session)]
    assert one == applied | {"seed": 3}
    assert two == {"max_tokens": 5000}


async def test_render_names_the_node_that_is_extended_and_says_why(start):
    server, _, session = await start("One.", "Two.", Reply(text="raw", finish_reason="length"))
    path = f"/{session}/v1/chat/completions"
    _, shown = await server.post(f"{path}/render", CHAT)
    assert (shown["parent_id"], shown["num_recorded"]) == (None, 0)
    assert shown["why"] == "no recorded conversation begins like this one"
    (message,) = await chat(server, session, USER)
    body = {"messages": [USER, message, USER]}
    _, shown = await server.post(f"{path}/render", body)
    (node,) = await server.nodes(session)
    assert shown["parent_id"] == node["metadata"]["node_id"]
    assert shown["num_recorded"] == len(node["tokens"])
    assert shown["why"] == "messages[0] to messages[1] are recorded up to this node"
    assert shown["branch_reason"] is None
    await chat(server, session, *body["messages"])
    body["messages"][2] = {"role": "user", "content": "c"}
    _, shown = await server.post(f"{path}/render", body)
    assert shown["parent_id"] == node["metadata"]["node_id"]
    assert shown["branch_reason"] == "messages[2].content differs"
    await server.post(f"/{session}/v1/completions", {"prompt": "Once"})
    _, shown = await server.post(f"/{session}/v1/completions/render", {"prompt": "Onceraw more"})
    assert shown["parent_id"] == (await server.nodes(session))[-1]["metadata"]["node_id"]
    assert shown["why"] == "the prompt begins with this node's recorded sequence"


async def test_calls_of_one_session_run_at_once(start):
    met = asyncio.Barrier(3)

    class Meeting(ScriptedTokenBackend):
        async def generate(self, request):
            await met.wait()  # none gets further before all are here
            async for delta in super().generate(request):
                yield delta

    server, backend, session = await start("One.")
    (message,) = await chat(server, session, USER)
    backend.__class__ = Meeting
    backend._script = iter(["Two.", "Three.", "Four."])
    async with asyncio.timeout(5):
        await asyncio.gather(
            *(chat(server, session, USER, message, {"role": "user", "content": text}) for text in "xyz")
        )
    nodes = await server.nodes(session)
    assert len({node["metadata"]["parent_id"] for node in nodes}) == 1
    assert sorted(node["tokens"] for node in nodes) == sorted(
        call.prompt_ids + call.output_ids[0] for call in backend.calls[1:]
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_the_last_byte_waits_for_the_store(rolltap_serve, rolltap_tokenizer, stream):
    store = SlowStore()
    backend = ScriptedTokenBackend(rolltap_tokenizer, ["One."])
    server = await rolltap_serve(backend, plugins=[store], config={"store": {"kind": "slow"}})
    session = await server.session()

    async def ask():
        body = {**CHAT, "stream": stream}
        async with server.http.post(f"/{session}/v1/chat/completions", json=body) as response:
            return await response.text()

    call = asyncio.ensure_future(ask())
    await store.storing.wait()
    await asyncio.sleep(0.1)
    assert not call.done()
    store.go_on.set()
    assert (await call).rstrip().endswith("data: [DONE]" if stream else "}")


async def test_what_is_unsafe_is_said_once(start, caplog):
    with caplog.at_level("WARNING", logger="rolltap"):
        silent = Reply(text="a", echo=False)
        server, _, session = await start(silent, silent, "b")
        for text in "xyz":
            await chat(server, session, {"role": "user", "content": text})
    said = [record.getMessage() for record in caplog.records]
    assert [text for text in said if "backend" in text] == [
        "backend given-0 of test-model does not echo the ids of its prompts: that it saw what it was sent is not proved"
    ]


async def test_an_unusual_template_is_said_at_start(rolltap_serve, tmp_path, caplog):
    with caplog.at_level("WARNING", logger="rolltap"):
        await rolltap_serve(ScriptedTokenBackend(str(FAMILIES["qwen3"].build(tmp_path))))
    (said,) = [text for record in caplog.records if "append-only" in (text := record.getMessage())]
    assert said.startswith(
        "model test-model, append-only, thinking: the template renders earlier turns differently"
    )


async def test_drift_is_counted_without_a_session_too(rolltap_serve, rolltap_tokenizer):
    backend = ScriptedTokenBackend(rolltap_tokenizer, [Reply(text="a", echo=[1])])
    server = await rolltap_serve(backend)
    status, _ = await server.post("/v1/chat/completions", CHAT)
    assert status == 200
    async with server.http.get("/health") as response:
        assert (await response.json())["record"]["drifted"] == 1


async def test_thinking_that_the_prompt_opens_is_thinking_and_is_recorded_once(start, tmp_path):
    template = tmp_path / "opens.jinja"
    template.write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    )
    model = {"chat_template": str(template), "reasoning_parser": "think"}
    server, backend, session = await start("Hm.\n</think>\n\nOne.", "So.\n</think>\n\nTwo.", model=model)
    (message,) = await chat(server, session, USER)
    assert message["content"].strip() == "One."
    assert "Hm." in (message.get("reasoning") or message["reasoning_content"])
    await chat(server, session, USER, {"role": "assistant", "content": "One."}, USER)
    (node,) = await server.nodes(session)
    assert node["tokens"] == backend.calls[1].prompt_ids + backend.calls[1].output_ids[0]
    assert "<think>\nHm.\n</think>\n\nOne.<|im_end|>\n" in node["full_text"]
    assert node["full_text"].count("<think>") == node["full_text"].count("</think>") == 2


async def test_a_slow_client_that_leaves_did_not_get_it(rolltap_serve):
    answer = [ChatDelta(text="x" * 20_000_000), ChatDelta(finish_reason="stop")]  # more than sockets hold
    server = await rolltap_serve(ScriptedChatBackend([answer]))
    session = await server.session()
    url, body = urlsplit(server.url), json.dumps({**CHAT, "stream": True})
    reader, writer = await asyncio.open_connection(url.hostname, url.port, limit=1024)
    head = f"POST /{session}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body.encode())
    assert b"200" in await reader.readline()
    await asyncio.sleep(0.2)
    writer.transport.abort()
    async with asyncio.timeout(10):
        while not await server.nodes(session):  # noqa: ASYNC110 - it is recorded in the background
            await asyncio.sleep(0.05)
    (node,) = await server.nodes(session)
    assert node["metadata"]["delivery"] == "aborted"
    assert len(node["full_text"]) > 20_000_000


async def test_the_order_of_tools_does_not_matter(start):
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
        for name in "fg"
    ]
    server, backend, session = await start("One.", "Two.")
    (message,) = await chat(server, session, USER, tools=tools)
    await chat(server, session, USER, message, USER, tools=tools[::-1])
    (node,) = await server.nodes(session)
    assert node["tokens"] == backend.calls[1].prompt_ids + backend.calls[1].output_ids[0]


async def test_text_of_users_is_never_dropped(start):
    server, _, session = await start("One.", model={"drop_system_text": ["secret"]})
    await chat(
        server, session, {"role": "system", "content": "secret."}, {"role": "user", "content": "my secret"}
    )
    (node,) = await server.nodes(session)
    assert node["full_text"].count("secret") == 1
    assert "my secret" in node["full_text"]
