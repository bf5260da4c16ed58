"""`rolltap show` and `rolltap tail` against a real server."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rolltap.cli import main
from rolltap.testing import MODEL, Reply, ScriptedTokenBackend

ROLLTAP = str(Path(sys.executable).with_name("rolltap"))
HOSTILE = "\x1b[31mred \x1b]0;title\x07 [bold]not bold[/] \u202etxt"


@pytest.fixture
def serve_scripted(rolltap_serve, rolltap_tokenizer):
    async def start(*script, **server):
        backend = ScriptedTokenBackend(rolltap_tokenizer, script)
        return await rolltap_serve(backend, model={"tokenizer": rolltap_tokenizer}, config={"server": server})

    return start


async def run(*arguments):
    return await asyncio.to_thread(CliRunner().invoke, main, [*arguments])


async def ask(client, *questions):
    messages = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        reply = await client.chat.completions.create(model=MODEL, messages=messages)
        messages.append({"role": "assistant", "content": reply.choices[0].message.content})
    return messages


async def test_a_session_is_shown_with_what_its_sequences_have_in_common_said_once(
    serve_scripted, openai_client
):
    server = await serve_scripted("Blue.", "Sure.", Reply(text="Perhaps.", logprobs=None))
    session = await server.session(group="colours", labels={"task": "name"})
    client = openai_client(server, session)
    first = await ask(client, "Which colour?", "Are you sure?")
    again = [*first[:2], {"role": "user", "content": "Really?"}]
    await client.chat.completions.create(model=MODEL, messages=again)

    result = await run("show", session, "--url", server.url)
    assert result.exit_code == 0, result.output
    assert "colours" in result.output
    assert "task=name" in result.output
    assert result.output.count("Which colour?") == 1
    assert "messages[0] to messages[1] as above" in result.output
    assert "untrainable: " in result.output
    assert "Perhaps." in result.output

    node = (await server.nodes(session))[0]["metadata"]["node_id"]
    result = await run("show", session, "--node", node, "--url", server.url)
    assert "Sure." in result.output
    assert "Perhaps." not in result.output


async def test_what_a_model_writes_does_not_steer_the_terminal(serve_scripted, openai_client):
    server = await serve_scripted(HOSTILE)
    session = await server.session()
    await ask(openai_client(server, session), HOSTILE)
    result = await run("show", session, "--url", server.url)
    for character in "\x1b\x07\u202e":
        assert character not in result.output
    assert "⟦U+001B⟧[31mred" in result.output
    assert "[bold]not bold[/]" in result.output


async def test_a_long_text_is_cut_unless_all_of_it_is_asked_for(serve_scripted, openai_client):
    server = await serve_scripted("Yes.")
    session = await server.session()
    await ask(openai_client(server, session), "word " * 1000 + "the end")
    cut = await run("show", session, "--url", server.url)
    assert "characters more; --full shows them" in cut.output
    assert "the end" not in cut.output
    whole = await run("show", session, "--full", "--url", server.url)
    assert "the end" in whole.output


async def test_a_session_without_calls_says_so(serve_scripted):
    server = await serve_scripted()
    session = await server.session()
    result = await run("show", session, "--url", server.url)
    assert (result.exit_code, "No calls were recorded yet." in result.output) == (0, True)


async def test_an_unknown_session_and_an_unknown_node_are_named(serve_scripted, openai_client):
    server = await serve_scripted("Yes.")
    session = await server.session()
    await ask(openai_client(server, session), "Well?")
    result = await run("show", "none", "--url", server.url)
    assert (result.exit_code, "'none' is unknown" in result.output) == (1, True)
    result = await run("show", session, "--node", "none", "--url", server.url)
    assert result.exit_code == 1
    assert "'none'; it has: " in result.output


@pytest.mark.parametrize("command", [["show", "x"], ["tail"]])
@pytest.mark.parametrize(
    ("url", "words"), [("http://127.0.0.1:1", "start one with `rolltap serve`"), ("nowhere", "is no URL")]
)
async def test_a_server_that_does_not_answer_is_one_message(command, url, words):
    result = await run(*command, "--url", url)
    assert result.exit_code == 1
    assert words in result.output
    assert "Traceback" not in result.output


async def test_a_key_is_asked_for_and_taken_from_the_environment(serve_scripted, monkeypatch):
    server = await serve_scripted(api_keys=["secret"])
    result = await run("tail", "--url", server.url)
    assert (result.exit_code, "api_keys" in result.output) == (1, True)
    headers = {"Authorization": "Bearer secret"}
    async with server.http.post("/sessions/create", json={}, headers=headers) as response:
        session = (await response.json())["uuid"]
    monkeypatch.setenv("ROLLTAP_API_KEY", "secret")
    result = await run("show", session, "--url", server.url)
    assert result.exit_code == 0, result.output


async def test_tail_tells_of_sessions_and_turns_and_ends_at_ctrl_c(serve_scripted, openai_client):
    server = await serve_scripted("Blue.", HOSTILE, Reply(text="Perhaps.", logprobs=None))
    old = await server.session(group="older")
    process = await asyncio.create_subprocess_exec(
        ROLLTAP,
        "tail",
        "--url",
        server.url,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "200"},
    )
    try:
        async with asyncio.timeout(30):
            assert b"Following" in await process.stdout.readline()
            session = await server.session(group="colours")
            await ask(openai_client(server, session), "Which?", "And?")
            await ask(openai_client(server, old), "Which?")
            async with server.http.delete(f"/{session}") as response:
                assert response.status == 200
            seen = []
            while not seen or "deleted" not in seen[-1]:
                seen.append((await process.stdout.readline()).decode())
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = "".join(seen)
    assert f"new session of {MODEL}" in seen[0]
    assert session[:8] in seen[0]
    assert "colours" in seen[1]
    assert "Blue. " in seen[1]
    assert "\x1b" not in text
    assert "older" in text
    assert "untrainable: " in text
