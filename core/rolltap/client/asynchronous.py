"""`AsyncClient`: talks to a server's HTTP routes."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from rolltap.bases.backends import PauseMode
from rolltap.client.sessions import Session, SessionLike, session_id, several
from rolltap.errors import BadRequest, ErrorInfo, NotFound, RequestError, Unreachable

_POLL_S = (0.1, 2.0)
"""How long `wait` sleeps between two looks: at first, and at most."""

_AT_ONCE = 32
"""How many requests a client has in flight."""


class AsyncClient:
    """Talks to one server. Use it with `async with`, or call `close`.

    A wrong request raises the server's own error, a `rolltap.RequestError` with its `info`; a server that does not
    answer raises `rolltap.Unreachable`.
    """

    def __init__(self, url: str, api_key: str | None = None, *, timeout_s: float = 300.0) -> None:
        self.url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = aiohttp.ClientTimeout(sock_connect=timeout_s, sock_read=timeout_s)
        self._http: aiohttp.ClientSession | None = None
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()

    async def create(self, *, group: str = "", n: int = 1, **settings: Any) -> list[Session]:
        """Create `n` sessions of one group; `settings` are those of `POST /sessions/create`, such as `labels`.

        All or none: where one can't be created, the others are deleted again.
        """
        body = {**settings, **({"group": group} if group else {})}
        tasks = [asyncio.ensure_future(self._create(body, group)) for _ in range(n)]
        made = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [each for each in made if isinstance(each, BaseException)]
        sessions = [each for each in made if isinstance(each, Session)]
        if failures:
            await asyncio.gather(*map(self.delete, sessions), return_exceptions=True)
            raise failures[0]
        return sessions

    async def _create(self, body: Mapping[str, Any], group: str) -> Session:
        reply = await self._ask("POST", "/sessions/create", json=body)
        return Session(uuid=reply["uuid"], url=self.url, group=group, model_name=reply["model_name"])

    async def sessions(self, *, group: str = "", state: str = "") -> AsyncGenerator[dict[str, Any], None]:
        """What `GET /sessions` says of each session, page by page."""
        after: str | None = ""
        while after is not None:
            page = await self._ask("GET", "/sessions", params=_given(group=group, state=state, after=after))
            for summary in page["sessions"]:
                yield summary
            after = page.get("next")

    async def session(self, session: SessionLike) -> dict[str, Any]:
        """What `GET /{sid}` says of a session."""
        return await self._ask("GET", f"/{session_id(session)}")

    async def wait(
        self,
        sessions: SessionLike | Sequence[SessionLike] = (),
        timeout: float | None = None,  # noqa: ASYNC109 - its end is an answer, not an error
        *,
        group: str = "",
    ) -> list[dict[str, Any]]:
        """Wait until these sessions, or all of a group, are sealed, or until `timeout` seconds are over.

        Returns what is then known of each; those that are late have the state "open".
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        pause, longest = _POLL_S
        while True:
            summaries = await self._look(sessions, group)
            left = None if deadline is None else deadline - time.monotonic()
            if all(each["state"] == "sealed" for each in summaries) or (left is not None and left <= 0):
                return summaries
            await asyncio.sleep(pause if left is None else min(pause, left))
            pause = min(pause * 1.5, longest)

    async def _look(self, sessions: SessionLike | Sequence[SessionLike], group: str) -> list[dict[str, Any]]:
        if group:
            return [summary async for summary in self.sessions(group=group)]
        return list(await asyncio.gather(*map(self.session, several(sessions))))

    async def nodes(self, session: SessionLike, **query: str) -> list[dict[str, Any]]:
        """A session's nodes; `query` is that of `GET /{sid}/nodes`, such as `mask="all"` or `messages="true"`."""
        reply = await self._ask("GET", f"/{session_id(session)}/nodes", params=query)
        return list(reply["nodes"])

    async def rows(
        self,
        sessions: SessionLike | Sequence[SessionLike] = (),
        *,
        format: str = "jsonl",  # noqa: A002 - as the query has it
        group: str = "",
        untrainable: str = "",
        lineage: str = "",
    ) -> list[dict[str, Any]]:
        """The rows of these sessions, or of a group, in an exporter's format, in the order of the sessions."""
        query = _given(untrainable=untrainable, lineage=lineage)
        if group:
            return [row async for row in self.export(format=format, group=group, **query)]
        query["format"] = format
        paths = [f"/{session_id(each)}/nodes" for each in several(sessions)]
        replies = await asyncio.gather(*(self._ask("GET", path, params=query) for path in paths))
        return [row for reply in replies for row in reply["rows"]]

    async def export(
        self,
        *,
        format: str = "jsonl",  # noqa: A002 - as the query has it
        group: str = "",
        sealed: bool = False,
        **query: str,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The rows of a group, or of all sessions, as the server streams them: memory stays flat."""
        params = {"format": format, **query, **_given(group=group, sealed="true" if sealed else "")}
        async for line in self.export_lines(**params):
            yield orjson.loads(line)

    async def export_lines(
        self, sessions: SessionLike | Sequence[SessionLike] = (), **query: str
    ) -> AsyncGenerator[bytes, None]:
        """The lines of `GET /sessions/export` as they are, without their ends; of all sessions, or of these."""
        params = [("session", session_id(each)) for each in several(sessions)] + [*query.items()]
        rest = bytearray()  # a row may be many pieces long
        async with self._request("GET", "/sessions/export", params=params) as response:
            async for piece in response.content.iter_any():
                rest += piece
                if b"\n" in piece:
                    *lines, rest = rest.split(b"\n")
                    for line in lines:
                        yield bytes(line)
        if rest:
            raise Unreachable(f"{self.url}/sessions/export ended in the middle of a row")

    async def reward(
        self, session: SessionLike, value: float, *, name: str = "", node_id: str = ""
    ) -> dict[str, Any]:
        """Reward a session's leaves, or one node; the last of a name wins."""
        body = {"value": value, **_given(name=name, node_id=node_id)}
        return await self._ask("POST", f"/{session_id(session)}/reward", json=body)

    async def seal(self, session: SessionLike) -> dict[str, Any]:
        """End a session: later calls are refused. Calls in flight are waited for."""
        return await self._ask("POST", f"/{session_id(session)}/seal")

    async def delete(self, session: SessionLike | None = None, *, group: str = "") -> dict[str, Any]:
        """Delete a session, or all of a group."""
        if (session is None) == (not group):
            raise BadRequest("delete takes a session or a group, one of them", param="group")
        if session is None:
            return await self._ask("DELETE", "/sessions", params={"group": group})
        return await self._ask("DELETE", f"/{session_id(session)}")

    async def pause(self, mode: PauseMode = "keep") -> dict[str, Any]:
        """Pause the engines, so that weights can be changed; agents' calls wait meanwhile."""
        return await self._ask("POST", "/admin/pause", json={"mode": mode})

    async def resume(self, version: int | str | None = None) -> dict[str, Any]:
        """Let the engines go on, with weights of this version where it is given."""
        return await self._ask("POST", "/admin/resume", json=_given(version=version))

    async def weights(
        self, version: int | str, *, path: str | None = None, model: str | None = None
    ) -> dict[str, Any]:
        """From now on the weights are of this version; `path`: the embedded backend loads these."""
        body = {"version": version, **_given(path=path, model=model)}
        return await self._ask("POST", "/admin/weights", json=body)

    async def state(self) -> dict[str, Any]:
        """Whether engines are paused, and the version of the weights."""
        return await self._ask("GET", "/admin/state")

    async def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        async with self._at_once, self._request(method, path, **options) as response:
            reply: dict[str, Any] = orjson.loads(await response.read())
            return reply

    @contextlib.asynccontextmanager
    async def _request(self, method: str, path: str, **options: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._http is None:
            self._http = aiohttp.ClientSession(headers=self._headers, timeout=self._timeout)
        try:
            async with self._http.request(method, self.url + path, **options) as response:
                if response.status >= 400:
                    raise _error(response, await response.read())
                yield response
        except TimeoutError as error:
            raise Unreachable(f"{self.url} did not answer {method} {path} in time") from error
        except aiohttp.ClientError as error:
            raise Unreachable(
                f"{self.url} is not reached ({error}); is `rolltap serve` running there?"
            ) from error


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value not in {None, ""}}


def _error(response: aiohttp.ClientResponse, body: bytes) -> RequestError:
    """The error that the server answered with."""
    try:
        said = orjson.loads(body)["error"]
        message = str(said["message"])
    except (ValueError, TypeError, KeyError):
        said, message = (
            {},
            f"{response.method} {response.url} answered {response.status} without an error of rolltap's",
        )
    retry_after = response.headers.get("retry-after")
    info = ErrorInfo(
        status=response.status,
        message=message,
        type=said.get("type") or "server_error",
        code=said.get("code"),
        param=said.get("param"),
        retry_after=float(retry_after) if retry_after else None,
    )
    if info.status == 400:
        return BadRequest(info.message, param=info.param, code=info.code)
    if info.status == 404:
        return NotFound(info.message, code=info.code or "not_found", param=info.param)
    return RequestError(info)
