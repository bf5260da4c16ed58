"""The trainers' client, with and without `await`, against what the routes answer."""

import asyncio
import pickle
from collections import Counter

import orjson
import pytest
from aiohttp import web

from rolltap import BadRequest, NotFound, RequestError, Unreachable
from rolltap.client import AsyncClient, Client, Session

PAGE = 2


class Routes:
    """The routes that the client asks, with what was said to them kept."""

    def __init__(self):
        self.sessions = {}
        self.asked = []
        self.refuse_after = None
        self.at_once = self.most_at_once = 0
        self.app = web.Application()
        self.app.add_routes(
            [
                web.post("/sessions/create", self.create),
                web.get("/sessions", self.list),
                web.get("/sessions/export", self.export),
                web.delete("/sessions", self.delete_group),
                web.post("/admin/{verb}", self.admin),
                web.get("/admin/state", self.admin),
                web.get("/{sid}", self.describe),
                web.get("/{sid}/nodes", self.nodes),
                web.post("/{sid}/reward", self.reward),
                web.post("/{sid}/seal", self.seal),
                web.delete("/{sid}", self.delete),
            ]
        )

    async def body(self, request):
        said = orjson.loads(await request.read() or b"{}")
        self.asked.append((request.method, request.path, dict(request.query), said))
        return said

    def known(self, request):
        session = self.sessions.get(request.match_info["sid"])
        if session is None:
            self.fail(404, "session 'x' is unknown here", "session_not_found")
        return session

    def fail(self, status, message, code, **headers):
        kind = {404: web.HTTPNotFound, 409: web.HTTPConflict, 429: web.HTTPTooManyRequests}[status]
        error = {"message": message, "type": "t", "code": code, "param": "p"}
        raise kind(text=orjson.dumps({"error": error}).decode(), headers=headers)

    async def create(self, request):
        said = await self.body(request)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.01)
        self.at_once -= 1
        if self.refuse_after is not None and len(self.sessions) >= self.refuse_after:
            self.fail(
                429, "this server keeps at most 2 sessions", "rate_limit_exceeded", **{"retry-after": "60"}
            )
        uuid = f"s{len(self.sessions)}"
        self.sessions[uuid] = {"uuid": uuid, "state": "open", "group": said.get("group", "")}
        return web.json_response(
            {"uuid": uuid, "model_name": "m", "tool_parser": "", "base_url": None, "created_at": 1.0}
        )

    async def list(self, request):
        await self.body(request)
        found = [
            each
            for each in self.sessions.values()
            if request.query.get("group") in {None, each["group"]}
            and request.query.get("state") in {None, each["state"]}
        ]
        start = int(request.query.get("after") or 0)
        more = str(start + PAGE) if len(found) > start + PAGE else None
        return web.json_response({"sessions": found[start : start + PAGE], "next": more})

    async def describe(self, request):
        return web.json_response(self.known(request))

    async def nodes(self, request):
        await self.body(request)
        uuid = self.known(request)["uuid"]
        if "format" in request.query:
            return web.json_response({"rows": [{"session": uuid}], "left_out": {}})
        return web.json_response({"nodes": [{"tokens": [1]}]})

    async def reward(self, request):
        return web.json_response({"uuid": self.known(request)["uuid"], **await self.body(request)})

    async def seal(self, request):
        session = self.known(request)
        session["state"] = "sealed"
        return web.json_response({"uuid": session["uuid"], "state": "sealed"})

    async def delete(self, request):
        self.sessions.pop(self.known(request)["uuid"])
        return web.json_response({"status": "deleted", "uuid": request.match_info["sid"]})

    async def delete_group(self, request):
        await self.body(request)
        return web.json_response({"status": "deleted"})

    async def admin(self, request):
        await self.body(request)
        return web.json_response({"paused": True, "version": "3"})

    async def export(self, request):
        await self.body(request)
        response = web.StreamResponse()
        await response.prepare(request)
        rows = b"".join(orjson.dumps({"session": uuid}) + b"\n" for uuid in self.sessions)
        for start in range(0, len(rows), 7):
            await response.write(rows[start : start + 7])
            await asyncio.sleep(0)
        if "cut" in request.query:
            await response.write(b'{"session"')
        return response


@pytest.fixture
async def routes(aiohttp_server):
    made = Routes()
    server = await aiohttp_server(made.app)
    made.url = str(server.make_url("/")).rstrip("/")
    return made


@pytest.fixture
async def client(routes):
    async with AsyncClient(routes.url + "/", "secret") as made:
        yield made


async def test_a_group_of_sessions_is_created_at_once(routes, client):
    sessions = await client.create(group="g", n=3, labels={"task": 1})
    assert sorted(each.uuid for each in sessions) == ["s0", "s1", "s2"]
    assert routes.most_at_once == 3
    assert [said for *_, said in routes.asked] == [{"group": "g", "labels": {"task": 1}}] * 3
    assert [each["uuid"] async for each in client.sessions(group="g")] == ["s0", "s1", "s2"]


async def test_a_session_knows_the_addresses_for_agents(routes, client):
    (session,) = await client.create()
    assert session.base_url == session.openai_base_url == f"{routes.url}/s0/v1"
    assert session.anthropic_base_url == f"{routes.url}/s0"
    assert session.environment["OPENAI_BASE_URL"] == session.base_url
    assert pickle.loads(pickle.dumps(session)) == session


async def test_where_one_can_t_be_created_none_is_left(routes, client):
    routes.refuse_after = 2
    with pytest.raises(RequestError, match="at most 2 sessions") as refused:
        await client.create(n=3)
    assert (refused.value.info.status, refused.value.info.retry_after) == (429, 60)
    assert routes.sessions == {}


async def test_waiting_ends_when_all_are_sealed(client):
    sessions = await client.create(group="g", n=2)

    async def agents():
        for session in sessions:
            await asyncio.sleep(0.05)
            await client.seal(session)

    running = asyncio.ensure_future(agents())
    assert [each["state"] for each in await client.wait(sessions)] == ["sealed", "sealed"]
    assert [each["state"] for each in await client.wait(group="g")] == ["sealed", "sealed"]
    await running


async def test_waiting_ends_at_the_deadline(client):
    early, late = await client.create(n=2)
    await client.seal(early)
    async with asyncio.timeout(5):
        states = {each["uuid"]: each["state"] for each in await client.wait([early, late], 0.2)}
    assert states == {early.uuid: "sealed", late.uuid: "open"}


async def test_rows_come_in_the_order_of_the_sessions(routes, client):
    sessions = await client.create(n=5)
    rows = await client.rows(sessions[::-1], format="trl", lineage="main")
    assert [row["session"] for row in rows] == [each.uuid for each in sessions[::-1]]
    assert routes.asked[-1][2] == {"format": "trl", "lineage": "main"}
    assert await client.rows(sessions[0].uuid) == [{"session": sessions[0].uuid}]


async def test_an_export_is_read_row_by_row_however_it_is_cut(routes, client):
    await client.create(group="g", n=20)
    rows = [row async for row in client.export(format="verl", group="g", sealed=True)]
    assert rows == [{"session": uuid} for uuid in routes.sessions]
    assert routes.asked[-1][2] == {"format": "verl", "group": "g", "sealed": "true"}
    assert await client.rows(group="g") == rows


async def test_an_export_that_breaks_off_is_no_shorter_export(client):
    await client.create()
    with pytest.raises(Unreachable, match="ended in the middle of a row"):
        async for _ in client.export_lines(cut="1"):
            pass


async def test_what_is_said_about_a_session(routes, client):
    (session,) = await client.create()
    await client.reward(session, 0.0)
    await client.reward(session.uuid, 1.0, name="style", node_id="n1")
    assert [said for _, path, _, said in routes.asked if path.endswith("/reward")] == [
        {"value": 0.0},
        {"value": 1.0, "name": "style", "node_id": "n1"},
    ]
    assert await client.nodes(session, mask="all") == [{"tokens": [1]}]
    assert (await client.delete(session))["status"] == "deleted"
    await client.delete(group="g")
    with pytest.raises(BadRequest, match="a session or a group"):
        await client.delete()


async def test_weights_are_changed_while_agents_wait(routes, client):
    await client.pause("wait")
    await client.weights("3", path="/weights", model="m")
    await client.resume(version="3")
    assert (await client.state())["version"] == "3"
    assert routes.asked == [
        ("POST", "/admin/pause", {}, {"mode": "wait"}),
        ("POST", "/admin/weights", {}, {"version": "3", "path": "/weights", "model": "m"}),
        ("POST", "/admin/resume", {}, {"version": "3"}),
        ("GET", "/admin/state", {}, {}),
    ]


async def test_errors_are_the_server_s_own(client):
    with pytest.raises(NotFound, match="'x' is unknown here") as missing:
        await client.nodes("x")
    assert (missing.value.info.code, missing.value.info.param) == ("session_not_found", "p")
    with pytest.raises(RequestError, match="answered 405 without an error of rolltap's"):
        await client._ask("PATCH", "/sessions")


async def test_a_server_that_is_not_there_is_named(unused_tcp_port):
    async with AsyncClient(f"http://127.0.0.1:{unused_tcp_port}") as nobody:
        with pytest.raises(Unreachable, match=f":{unused_tcp_port} is not reached .* `rolltap serve`"):
            await nobody.state()


async def test_a_server_that_is_silent_is_named(aiohttp_server):
    async def never(request):
        await asyncio.sleep(60)

    app = web.Application()
    app.router.add_get("/admin/state", never)
    server = await aiohttp_server(app)
    async with AsyncClient(str(server.make_url("/")), timeout_s=0.1) as waiting:
        with pytest.raises(Unreachable, match="did not answer GET /admin/state in time"):
            await waiting.state()


def in_a_thread(work):
    return asyncio.to_thread(work)


async def test_the_blocking_client_says_the_same(routes):
    def work():
        with Client(routes.url, "secret") as client:
            sessions = client.create(group="g", n=3)
            for session in sessions:
                client.reward(session, 1.0)
                client.seal(session)
            waited = client.wait(sessions, 5), client.wait(group="g")
            listed = [each["uuid"] for each in client.sessions(group="g")]
            rows = client.rows(sessions, format="trl"), list(client.export(format="trl"))
            first = next(iter(client.export()))
            client.pause()
            client.weights("4")
            client.resume()
            client.delete(sessions[0])
            return client.url, sessions, waited, listed, rows, first, client.state(), client.nodes("s1")

    url, sessions, waited, listed, rows, first, state, nodes = await in_a_thread(work)
    assert url == routes.url
    assert [each["state"] for each in waited[0] + waited[1]] == ["sealed"] * 6
    assert listed == [each["session"] for each in rows[1]] == ["s0", "s1", "s2"]
    assert sorted(each.uuid for each in sessions) == listed
    assert (first, state["version"], nodes) == ({"session": "s0"}, "3", [{"tokens": [1]}])
    assert Counter(path for _, path, _, _ in routes.asked)["/sessions/create"] == 3


async def test_the_blocking_client_raises_and_ends(routes):
    def work():
        client = Client(routes.url)
        with pytest.raises(NotFound):
            client.seal("x")
        client.close()
        client.close()
        assert not client._thread.is_alive()

    await in_a_thread(work)


async def test_keys_are_sent(aiohttp_server):
    keys = []

    async def state(request):
        keys.append(request.headers.get("authorization"))
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/admin/state", state)
    server = await aiohttp_server(app)
    for key in ("secret", None):
        async with AsyncClient(str(server.make_url("/")), key) as client:
            await client.state()
    assert keys == ["Bearer secret", None]


def test_a_session_can_be_made_from_what_is_known():
    assert Session(uuid="u", url="http://h").base_url == "http://h/u/v1"
