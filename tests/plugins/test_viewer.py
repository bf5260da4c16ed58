"""The viewer's pages and the data behind them, on a real server whose store begins with synthetic sessions."""

import asyncio
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

import rolltap_plugins.viewer
import synthetic_sessions as synthetic
from rolltap.testing import MODEL, ScriptedChatBackend

STATIC = Path(rolltap_plugins.viewer.__file__).parent / "static"


async def get(server, path, **query):
    async with server.http.get(f"/ui/api/{path}", params=query) as response:
        body = await response.json()
        assert response.status == 200, body
        return body


async def refused(server, path, **query):
    async with server.http.get(f"/ui/api/{path}", params=query) as response:
        return response.status, (await response.json())["error"]["message"]


async def test_every_file_is_served_and_every_link_leads_to_one(serve_filled):
    server = await serve_filled()
    texts = {}
    for file in STATIC.rglob("*"):
        if file.suffix in {".js", ".css", ".svg"}:
            path = f"/ui/{file.relative_to(STATIC).as_posix()}"
            async with server.http.get(path) as response:
                assert response.status == 200, path
                assert response.headers["Content-Security-Policy"]
                texts[path] = await response.text()
    for path, text in texts.items():
        if "/vendor/" not in path:
            for target in re.findall(r'from "(\.[^"]+)"', text):
                resolved = (STATIC / path.removeprefix("/ui/")).parent.joinpath(target).resolve()
                assert resolved.is_file(), f"{path} imports {target}"


async def test_it_can_be_disabled(rolltap_serve):
    server = await rolltap_serve(ScriptedChatBackend(["hi"]), config={"plugins": {"disable": ["viewer"]}})
    for path in ("/ui", "/ui/", "/ui/api/overview"):
        async with server.http.get(path, allow_redirects=False) as response:
            assert response.status == 404, path


async def test_the_policy_lets_nothing_run_but_the_viewers_own_files(serve_filled):
    server = await serve_filled()
    async with server.http.get("/ui/") as response:
        policy = response.headers["Content-Security-Policy"]
        page = await response.text()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", page)


async def test_a_browser_is_led_to_the_viewer_and_others_are_told_where_it_is(serve_filled):
    server = await serve_filled()
    for path in ("/", "/ui"):
        async with server.http.get(
            path, headers={"Accept": "text/html,*/*"}, allow_redirects=False
        ) as response:
            assert (response.status, response.headers["Location"]) == (302, "/ui/")
    async with server.http.get("/", headers={"Accept": "application/json"}) as response:
        assert response.status == 404
        assert "/ui/" in (await response.json())["error"]["message"]


async def test_data_needs_a_key_and_pages_do_not(serve_filled):
    server = await serve_filled(api_keys=["secret"])
    async with server.http.get("/ui/") as response:
        assert response.status == 200
    for path in ("overview", "sessions", "rewards", "sessions/x", "sessions/x/nodes/y", "compare", "events"):
        status, message = await refused(server, path)
        assert (status, "api_keys" in message) == (401, True), path
    headers = {"Authorization": "Bearer secret"}
    async with server.http.get("/ui/api/sessions", headers=headers) as response:
        assert response.status == 200


async def test_ten_thousand_sessions_are_searched_sorted_and_paged(serve_filled, encode):
    server = await serve_filled(*synthetic.many(encode, MODEL, 10_000))
    everything = await get(server, "sessions", limit=1000)
    assert everything["total"] == everything["matched"] == 10_000

    found = await get(server, "sessions", q="FIX parser", sort="reward", desc="true")
    assert 0 < found["matched"] < 10_000
    assert {row["group"] for row in found["rows"]} == {"fix-parser"}
    rewards = [row["reward"] for row in found["rows"]]
    known = [reward for reward in rewards if reward is not None]
    assert known == sorted(known, reverse=True)
    assert rewards[: len(known)] == known, "sessions without a reward stand last"

    drifted = await get(server, "sessions", mark="drifted", limit=1000)
    assert drifted["matched"] == sum(number % 11 == 0 and number % 3 > 0 for number in range(9_997))
    assert all(row["drifted"] == row["untrainable"] == 1 for row in drifted["rows"])
    assert (await get(server, "overview"))["drifted"] == drifted["matched"]

    upwards = await get(server, "sessions", sort="tokens", desc="false", limit=3)
    downwards = await get(server, "sessions", sort="tokens", desc="true", limit=3)
    assert upwards["rows"][0]["tokens"] < downwards["rows"][0]["tokens"]

    pages = [
        await get(server, "sessions", sort="id", desc="false", offset=at, limit=1000) for at in (0, 9500)
    ]
    assert [len(page["rows"]) for page in pages] == [1000, 500]

    marked = await get(server, "sessions", mark="untrainable", state="sealed")
    assert marked["matched"]
    assert all(row["untrainable"] and row["state"] == "sealed" for row in marked["rows"])


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ({"sort": "colour"}, "active"),
        ({"mark": "red"}, "untrainable"),
        ({"limit": "many"}, "limit"),
        ({"x": "1"}, "x"),
    ],
)
async def test_a_wrong_query_is_told_what_is_allowed(serve_filled, query, named):
    status, message = await refused(await serve_filled(), "sessions", **query)
    assert status == 400
    assert named in message


async def test_the_list_follows_what_happens(serve_filled, openai_client):
    server = await serve_filled(script=["One.", "Two."])
    assert (await get(server, "sessions"))["total"] == 0
    session = await server.session(group="colours")
    (row,) = (await get(server, "sessions"))["rows"]
    assert (row["id"], row["group"], row["turns"]) == (session, "colours", 0)
    client = openai_client(server, session)
    for turns in (1, 2):
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Go on."}])
        (row,) = (await get(server, "sessions"))["rows"]
        assert row["turns"] == turns
    async with server.http.delete(f"/{session}") as response:
        assert response.status == 200
    assert (await get(server, "sessions"))["total"] == 0


async def test_a_forest_says_who_goes_on_from_whom_and_why_it_branched(serve_filled, encode):
    writer = synthetic.branched(1, encode, MODEL)
    server = await serve_filled(writer)
    body = await get(server, f"sessions/{writer.uuid}")
    nodes = {node["id"]: node for node in body["nodes"]}
    assert len(nodes) == 14
    assert nodes["call-2.0"]["parent_id"] == "call-1.0"
    assert nodes["call-10.0"]["branch_reason"] == "messages[9].content differs"
    assert "parent_id" not in nodes["call-11.0"]
    assert [nodes[name].get("choice") for name in ("call-13.0", "call-13.1")] == [0, 1]
    assert nodes["call-13.0"]["untrainable_reason"].startswith("the engine gave no logprobs")
    assert {name for name, node in nodes.items() if node["leaf"]} == {
        "call-10.0",
        "call-12.0",
        "call-13.0",
        "call-13.1",
    }
    assert nodes["call-1.0"]["calls"] == ["run"]
    assert nodes["call-1.0"]["thinks"]


async def test_a_nodes_tokens_are_those_of_the_record(serve_filled, encode):
    writer = synthetic.branched(1, encode, MODEL)
    server = await serve_filled(writer)
    for recorded in await server.nodes(writer.uuid):
        name = recorded["metadata"]["node_id"]
        path = f"sessions/{writer.uuid}/nodes/{name}"
        assert (await get(server, f"{path}/ids"))["tokens"] == recorded["tokens"]
        size = len(recorded["tokens"])
        shown = {"ids": [], "pieces": [], "kinds": [], "logprobs": []}
        for start in range(0, size, 1000):
            window = await get(server, f"{path}/tokens", start=start, end=start + 1000)
            for field, values in shown.items():
                values.extend(window[field])
        assert shown["ids"] == recorded["tokens"]
        assert "".join(shown["pieces"]) == recorded["full_text"]
        for kind, logprob, mask, value in zip(
            shown["kinds"], shown["logprobs"], recorded["masked_tokens"], recorded["logprobs"], strict=True
        ):
            assert (kind == 2) == (mask != -100)
            if kind == 2:
                assert logprob == pytest.approx(value, abs=1e-6)
            if kind == 0:
                assert logprob is None


async def test_segments_cover_the_sequence_and_name_the_roles(serve_filled, encode):
    writer = synthetic.branched(1, encode, MODEL)
    server = await serve_filled(writer)
    node = await get(server, f"sessions/{writer.uuid}/nodes/call-3.0")
    segments = node["segments"]
    assert [segment["role"] for segment in segments] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    assert segments[0]["start"] == 0
    assert segments[-1]["end"] == node["num_tokens"]
    for before, after in pairwise(segments):
        assert before["end"] == after["start"]
    assert segments[1]["preview"].startswith("<|im_start|>user")
    assert node["raw"].startswith("<think>The listing")
    assert node["messages"][-1]["tool_calls"][0]["function"]["name"] == "run"


async def test_a_long_node_is_asked_for_in_parts(serve_filled, encode):
    writer = synthetic.long(1, encode, MODEL, tokens=100_000)
    server = await serve_filled(writer)
    path = f"sessions/{writer.uuid}/nodes/call-1.0"
    node = await get(server, path)
    assert node["num_tokens"] > 99_000
    assert len(node["plot"]["position"]) <= 1502
    generated = node["segments"][-1]
    starts = [generated["start"], *(at for at, _ in generated["cuts"]), generated["end"]]
    assert max(after - before for before, after in pairwise(starts)) <= 512
    middle = await get(server, f"{path}/tokens", start=50_000, end=50_100)
    assert len(middle["pieces"]) == 100
    status, message = await refused(server, f"{path}/tokens", start=0, end=99_000)
    assert status == 400
    assert "at most 2048" in message


async def test_two_nodes_are_compared_in_messages_and_in_ids(serve_filled, encode):
    writer = synthetic.branched(1, encode, MODEL)
    server = await serve_filled(writer)
    a, b = f"{writer.uuid}/call-10.0", f"{writer.uuid}/call-9.0"
    found = await get(server, "compare", a=a, b=b)
    assert (found["messages"]["index"], found["messages"]["fields"]) == (9, ["content"])
    assert found["messages"]["a"]["content"] == "ERROR: no such file"
    place = found["ids"]["index"]
    ours = (await get(server, f"sessions/{writer.uuid}/nodes/call-10.0/ids"))["tokens"]
    theirs = (await get(server, f"sessions/{writer.uuid}/nodes/call-9.0/ids"))["tokens"]
    assert ours[:place] == theirs[:place]
    assert ours[place] != theirs[place]
    same = await get(server, "compare", a=a, b=a)
    assert (same["messages"], same["ids"], same["tools_differ"]) == (None, None, False)


@pytest.mark.parametrize(
    ("path", "query", "status", "words"),
    [
        ("sessions/{sid}/nodes/none", {}, 404, "no node 'none'"),
        ("sessions/none", {}, 404, "none"),
        ("sessions/{sid}/nodes/call-1.0/tokens", {"start": "-1"}, 400, "whole number"),
        ("compare", {"a": "{sid}/call-1.0"}, 400, "SESSION/NODE"),
    ],
)
async def test_what_is_not_there_is_named(serve_filled, encode, path, query, status, words):
    writer = synthetic.branched(1, encode, MODEL)
    server = await serve_filled(writer)
    filled = {name: value.format(sid=writer.uuid) for name, value in query.items()}
    got, message = await refused(server, path.format(sid=writer.uuid), **filled)
    assert got == status
    assert words in message


async def test_events_come_as_they_are_recorded_and_end_with_the_server(serve_filled, openai_client):
    server = await serve_filled(script=["Blue."])
    async with server.http.get("/ui/api/events") as stream:
        assert (await stream.content.readline()) == b": here\n"
        session = await server.session(group="colours")
        client = openai_client(server, session)
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Which?"}])
        seen = []
        async with asyncio.timeout(10):
            while not seen or seen[-1]["kind"] != "call":
                line = await stream.content.readline()
                if line.startswith(b"data: "):
                    seen.append(json.loads(line[6:]))
        assert seen[0]["kind"] == "created"
        assert {event["session"] for event in seen} == {session}
        assert seen[-1]["said"] == "Blue."
        assert seen[-1]["trainable"]
        async with asyncio.timeout(10):
            await server.app.shutdown()
            await stream.content.read()  # the stream's end


async def test_a_pause_and_what_waits_are_told(serve_filled):
    server = await serve_filled()
    before = await get(server, "overview")
    (backend,) = before["models"][0]["backends"]
    assert (before["paused"], backend["in_flight"], backend["queued"]) == (False, 0, 0)
    await server.post("/admin/pause", {"mode": "wait"})
    paused = await get(server, "overview")
    assert paused["paused"]
    assert paused["paused_since"]
    await server.post("/admin/resume", {"version": 7})
    after = await get(server, "overview")
    assert (after["paused"], after["versions"]) == (False, {MODEL: 7})
