"""Rows over HTTP and by `rolltap export`: the same as the record, whatever the way."""

import asyncio
import json

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import rolltap
from rolltap.cli import main
from rolltap.client import AsyncClient
from rolltap.server.state import SESSIONS
from rolltap.testing import MODEL, ScriptedTokenBackend


def _answer(prompt_ids, sampling):
    return "Hello."


class Pairs(rolltap.ExportFormat):
    """A format of a plugin's own."""

    name = "pairs"

    def rows(self, session, nodes):
        for node in nodes:
            cut = node.packed.response_start
            yield {"prompt": node.tokens[:cut], "answer": node.tokens[cut:], "id": session.uuid}


class Breaking(rolltap.ExportFormat):
    """A format that fails at the second session."""

    name = "breaking"

    def __init__(self):
        self.sessions = 0

    def rows(self, session, nodes):
        self.sessions += 1
        if self.sessions > 1:
            raise RuntimeError("no more")
        yield {"id": session.uuid}


class Formats:
    """Two formats."""

    @rolltap.hookimpl
    def export_format(self, name):
        return {"pairs": Pairs, "breaking": Breaking}.get(name, lambda: None)()


@pytest.fixture
async def server(rolltap_serve, rolltap_tokenizer):
    return await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, _answer), plugins=[Formats()])


@pytest.fixture
def played(server, openai_client):
    """A function that plays a session of two turns; its id."""

    async def play(**settings):
        session = await server.session(**settings)
        client = openai_client(server, session)
        messages = [{"role": "user", "content": "Hi."}]
        for _ in range(2):
            reply = await client.chat.completions.create(model=MODEL, messages=messages)
            messages += [
                {"role": "assistant", "content": reply.choices[0].message.content},
                {"role": "user", "content": "And?"},
            ]
        return session

    return play


async def test_a_session_s_rows_are_its_record(server, played):
    session = await played(group="g", labels={"task": 3})
    (node,) = await server.nodes(session)
    async with server.http.get(f"/{session}/nodes", params={"format": "jsonl"}) as response:
        body = await response.json()
    (row,) = body["rows"]
    assert body["left_out"] == {}
    assert (row["session"], row["group"], row["label"]) == (session, "g", {"task": 3})
    assert row["tokens"] == node["tokens"]
    assert row["mask"] == [token != -100 for token in node["masked_tokens"]]
    assert [value if shown else 1.0 for value, shown in zip(row["logprobs"], row["mask"], strict=True)] == (
        node["logprobs"]
    )
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "user", "assistant"]
    assert row["metadata"] == node["metadata"]


async def test_a_conversation_is_told_turn_by_turn(server, played):
    session = await played()
    (node,) = await server.nodes(session)
    async with server.http.get(f"/{session}/nodes", params={"format": "atif"}) as response:
        (trajectory,) = (await response.json())["rows"]
    assert [step["source"] for step in trajectory["steps"]] == ["user", "agent", "user", "agent"]
    metrics = [step["metrics"] for step in trajectory["steps"] if step["source"] == "agent"]
    assert metrics[1]["prompt_token_ids"] + metrics[1]["completion_token_ids"] == node["tokens"]
    async with server.http.get(f"/{session}/nodes", params={"format": "openenv"}) as response:
        first, second = (await response.json())["rows"]
    assert len(first["request"]["messages"]) == 1
    assert first["response"]["choices"][0]["message"] == second["request"]["messages"][1]


async def test_sessions_are_streamed_in_their_order(server, played):
    sessions = [await played(group=group) for group in "aba"]
    async with AsyncClient(server.url) as client:
        everything = [row["id"] async for row in client.export(format="pairs")]
        group = [row["id"] async for row in client.export(format="pairs", group="a")]
        async with server.http.get("/sessions", params={"limit": "1"}) as response:
            cursor = (await response.json())["next"]
        after = [row["id"] async for row in client.export(format="pairs", after=cursor)]
        lines = [line async for line in client.export_lines(sessions[::-1], format="pairs")]
        assert await client.rows(sessions[2], format="pairs") == [json.loads(lines[0])]
    assert everything == sessions
    assert group == [sessions[0], sessions[2]]
    assert after == sessions[1:]
    assert [json.loads(line)["id"] for line in lines] == sessions[::-1]


async def test_an_export_that_fails_breaks_off(server, played, caplog):
    await played()
    await played()
    async with AsyncClient(server.url) as client:
        with pytest.raises(rolltap.Unreachable):
            [row async for row in client.export(format="breaking")]
    assert "an export ended early" in caplog.text


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"format": "jsonlines"}, "no plugin offers the export format 'jsonlines'"),
        ({"untrainable": "maybe"}, "untrainable='maybe': it is 'drop'"),
        ({"sealed": "yes"}, "sealed='yes'"),
        ({"session": "nobody"}, "session 'nobody' is unknown here"),
    ],
)
async def test_a_wrong_query_is_an_error_before_the_first_row(server, query, message):
    async with server.http.get("/sessions/export", params=query) as response:
        assert response.status in {400, 404}
        assert message in (await response.json())["error"]["message"]


async def test_rows_never_train_a_token_twice(server, played):
    session = await played()
    async with server.http.get(f"/{session}/nodes", params={"format": "trl", "mask": "all"}) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "mask"


async def test_a_key_is_needed_where_there_are_some(rolltap_serve, rolltap_tokenizer):
    server = await rolltap_serve(
        ScriptedTokenBackend(rolltap_tokenizer), config={"server": {"api_keys": ["secret"]}}
    )
    async with AsyncClient(server.url) as stranger, AsyncClient(server.url, "secret") as known:
        with pytest.raises(rolltap.RequestError, match="needs one of its api_keys"):
            [row async for row in stranger.export()]
        assert [row async for row in known.export()] == []


def run(*arguments):
    return asyncio.to_thread(lambda: CliRunner().invoke(main, ["export", *map(str, arguments)]))


async def test_the_command_writes_a_running_server_s_sessions(server, played, tmp_path):
    sessions = [await played(group=group) for group in "ab"]
    empty = await server.session()
    lines, columns = tmp_path / "rows.jsonl", tmp_path / "rows.parquet"
    done = await run("--all", "--url", server.url, "--to", lines)
    assert done.exit_code == 0, done.output
    assert f"{lines}: 2 rows of 3 sessions\n" in done.output
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["session"] for row in rows] == sessions
    done = await run(*sessions, empty, "--url", server.url, "--to", columns)
    assert done.exit_code == 0, done.output
    table = pq.read_table(columns).to_pylist()
    assert [row["tokens"] for row in table] == [row["tokens"] for row in rows]
    assert [row["logprobs"] for row in table] == [row["logprobs"] for row in rows]
    done = await run("--group", "b", "--url", server.url, "--format", "trl", "--to", lines)
    assert done.exit_code == 0, done.output
    (row,) = map(json.loads, lines.read_text().splitlines())
    assert row["prompt_ids"] + row["completion_ids"] == rows[1]["tokens"]
    assert sorted(tmp_path.iterdir()) == [lines, columns], "no unfinished file is left"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "x.jsonl"], "say which sessions to export"),
        (["--all", "--group", "g", "--to", "x.jsonl"], "one of the three"),
        (["--all", "--to", "x.csv"], "the name must end in .jsonl or .parquet"),
        (["--all", "--url", "http://h", "--config", "c", "--to", "x.jsonl"], "give one of them"),
    ],
)
async def test_a_wrong_command_line_is_a_message(arguments, message):
    done = await run(*arguments)
    assert done.exit_code == 2
    assert message in done.output


async def test_what_the_server_says_is_a_message(server, tmp_path, unused_tcp_port):
    target = tmp_path / "x.jsonl"
    nobody = await run("nobody", "--url", server.url, "--to", target)
    assert (nobody.exit_code, "session 'nobody' is unknown here" in nobody.output) == (1, True)
    group = await run("--group", "g", "--url", server.url, "--to", target)
    assert (group.exit_code, "nothing is exported" in group.output) == (2, True)
    silent = await run("--all", "--url", f"http://127.0.0.1:{unused_tcp_port}", "--to", target)
    assert (silent.exit_code, "is not reached" in silent.output) == (1, True)
    assert not list(tmp_path.iterdir())


async def test_another_format_than_parquet_has_no_columns(server, played, tmp_path):
    await played()
    done = await run("--all", "--url", server.url, "--format", "trl", "--to", tmp_path / "x.parquet")
    assert done.exit_code == 2
    assert "'trl' is written to a file whose name ends in .jsonl" in done.output


FILES = '''
"""A store that keeps each session's log in a file."""

import pathlib

import msgspec
import rolltap
from rolltap.record import decode_entry, encode_entry


class Files(rolltap.Store):
    durable = True

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def log(self, session):
        path = self.folder / session
        return msgspec.msgpack.decode(path.read_bytes()) if path.exists() else []

    async def append(self, session, entry):
        entries = [*self.log(session), encode_entry(entry)]
        (self.folder / session).write_bytes(msgspec.msgpack.encode(entries))
        return len(entries)

    async def read(self, session, after=0):
        return list(enumerate(map(decode_entry, self.log(session)), 1))[after:]

    async def sessions(self, *, after=0, limit=1000):
        names = sorted((path.name for path in self.folder.iterdir()), key=self.created_at)
        return [(number, name) for number, name in enumerate(names, 1) if number > after][:limit]

    def created_at(self, session):
        return decode_entry(self.log(session)[0]).info.created_at

    async def delete(self, session):
        (self.folder / session).unlink(missing_ok=True)

    async def claim(self, key, ttl_s):
        return True


@rolltap.hookimpl
def create_store(kind, options):
    return Files(options["folder"]) if kind == "files" else None
'''


@pytest.fixture
def stored(tmp_path):
    """A config file whose store is a folder, and that config's tables."""
    for name in ("plugins", "logs"):
        (tmp_path / name).mkdir()
    (tmp_path / "plugins" / "files.py").write_text(FILES)
    file = tmp_path / "rolltap.toml"
    tables = {
        "plugins": {"dir": str(tmp_path / "plugins")},
        "store": {"kind": "files", "folder": str(tmp_path / "logs")},
    }
    lines = [
        f"[{name}]\n" + "".join(f'{key} = "{value}"\n' for key, value in table.items())
        for name, table in tables.items()
    ]
    file.write_text(
        "\n".join(lines) + f'\n[[models]]\nname = "{MODEL}"\n[[models.backends]]\nkind = "given"\n'
    )
    return file, tables


async def test_the_command_reads_a_store_without_a_server(
    rolltap_serve, rolltap_tokenizer, openai_client, stored, tmp_path
):
    file, tables = stored
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, _answer), config=tables)
    sessions = [await server.session(group=group) for group in "aab"]
    for session in sessions:
        await openai_client(server, session).chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi."}]
        )
    recorded = {session: await server.nodes(session) for session in sessions}
    lines, columns = tmp_path / "rows.jsonl", tmp_path / "rows.parquet"
    done = await run("--all", "--config", file, "--to", columns)
    assert done.exit_code == 0, done.output
    table = {row["session"]: row["tokens"] for row in pq.read_table(columns).to_pylist()}
    assert table == {session: node["tokens"] for session, (node,) in recorded.items()}
    done = await run("--group", "a", "--config", file, "--to", lines)
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert {row["session"] for row in rows} == set(sessions[:2])
    assert [row["messages"][-1]["content"] for row in rows] == ["Hello.", "Hello."]
    done = await run(sessions[2], "--config", file, "--format", "pairs", "--to", lines)
    assert (done.exit_code, "no plugin offers the export format 'pairs'" in done.output) == (1, True)


async def test_a_store_that_ends_with_its_server_can_t_be_read(tmp_path):
    file = tmp_path / "rolltap.toml"
    file.write_text(
        f'[store]\nkind = "memory"\n[[models]]\nname = "{MODEL}"\n[[models.backends]]\nkind = "given"\n'
    )
    done = await run("--all", "--config", file, "--to", tmp_path / "rows.jsonl")
    assert done.exit_code == 2
    assert "store.kind = 'memory' keeps nothing when its server ends" in done.output


async def test_an_export_keeps_no_session_in_memory(rolltap_serve, rolltap_tokenizer, stored):
    _, tables = stored
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, _answer), config=tables)
    created = [await server.session() for _ in range(3)]
    sessions = server.app[SESSIONS]
    for session in list(sessions._loaded.values()):
        sessions._unload(session, session.summary())
    used = dict(sessions._known)
    async with AsyncClient(server.url) as client:
        lines = [line async for line in client.export_lines(progress="true")]
    assert {json.loads(line)["session"] for line in lines} == set(created)
    assert sessions._loaded == {}
    assert sessions._known == used, "to be exported is not to be used"
