"""`Client`: the same without `await`."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from threading import Thread
from types import TracebackType
from typing import Any, Self, TypeVar

from rolltap.bases.backends import PauseMode
from rolltap.client.asynchronous import AsyncClient
from rolltap.client.sessions import Session, SessionLike

T = TypeVar("T")


class Client:
    """`AsyncClient` without `await`: every method waits. Use it with `with`, or call `close`.

    The requests run on an event loop in a thread of the client's own, so that it works inside any program.
    """

    def __init__(self, url: str, api_key: str | None = None, *, timeout_s: float = 300.0) -> None:
        self._client = AsyncClient(url, api_key, timeout_s=timeout_s)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="rolltap-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The server's address."""
        return self._client.url

    def close(self) -> None:
        """Close the connections and end the thread."""
        if not self._loop.is_closed():
            self._run(self._client.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def create(self, *, group: str = "", n: int = 1, **settings: Any) -> list[Session]:
        """See `AsyncClient.create`."""
        return self._run(self._client.create(group=group, n=n, **settings))

    def sessions(self, *, group: str = "", state: str = "") -> Iterator[dict[str, Any]]:
        """See `AsyncClient.sessions`."""
        return self._each(self._client.sessions(group=group, state=state))

    def session(self, session: SessionLike) -> dict[str, Any]:
        """See `AsyncClient.session`."""
        return self._run(self._client.session(session))

    def wait(
        self,
        sessions: SessionLike | Sequence[SessionLike] = (),
        timeout: float | None = None,
        *,
        group: str = "",
    ) -> list[dict[str, Any]]:
        """See `AsyncClient.wait`."""
        return self._run(self._client.wait(sessions, timeout, group=group))

    def nodes(self, session: SessionLike, **query: str) -> list[dict[str, Any]]:
        """See `AsyncClient.nodes`."""
        return self._run(self._client.nodes(session, **query))

    def rows(
        self, sessions: SessionLike | Sequence[SessionLike] = (), **options: str
    ) -> list[dict[str, Any]]:
        """See `AsyncClient.rows`."""
        return self._run(self._client.rows(sessions, **options))

    def export(
        self,
        *,
        format: str = "jsonl",  # noqa: A002 - as the query has it
        group: str = "",
        sealed: bool = False,
        **query: str,
    ) -> Iterator[dict[str, Any]]:
        """See `AsyncClient.export`."""
        return self._each(self._client.export(format=format, group=group, sealed=sealed, **query))

    def export_lines(
        self, sessions: SessionLike | Sequence[SessionLike] = (), **query: str
    ) -> Iterator[bytes]:
        """See `AsyncClient.export_lines`."""
        return self._each(self._client.export_lines(sessions, **query))

    def reward(
        self, session: SessionLike, value: float, *, name: str = "", node_id: str = ""
    ) -> dict[str, Any]:
        """See `AsyncClient.reward`."""
        return self._run(self._client.reward(session, value, name=name, node_id=node_id))

    def seal(self, session: SessionLike) -> dict[str, Any]:
        """See `AsyncClient.seal`."""
        return self._run(self._client.seal(session))

    def delete(self, session: SessionLike | None = None, *, group: str = "") -> dict[str, Any]:
        """See `AsyncClient.delete`."""
        return self._run(self._client.delete(session, group=group))

    def pause(self, mode: PauseMode = "keep") -> dict[str, Any]:
        """See `AsyncClient.pause`."""
        return self._run(self._client.pause(mode))

    def resume(self, version: int | str | None = None) -> dict[str, Any]:
        """See `AsyncClient.resume`."""
        return self._run(self._client.resume(version))

    def weights(
        self, version: int | str, *, path: str | None = None, model: str | None = None
    ) -> dict[str, Any]:
        """See `AsyncClient.weights`."""
        return self._run(self._client.weights(version, path=path, model=model))

    def state(self) -> dict[str, Any]:
        """See `AsyncClient.state`."""
        return self._run(self._client.state())

    def _run(self, asked: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(asked, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _each(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        try:
            while (batch := self._run(_some(items))) is not None:
                yield from batch
        finally:
            self._run(items.aclose())


async def _some(items: AsyncGenerator[T, None]) -> list[T] | None:
    """The next item, as a list; None at the end."""
    async for item in items:
        return [item]
    return None
