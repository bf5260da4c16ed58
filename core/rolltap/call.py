"""A call: one request on its way, from what was asked to what was delivered and recorded."""

import asyncio
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext, suppress
from typing import Any, NamedTuple, TypeVar

import msgspec

from rolltap.errors import ErrorInfo, RequestError
from rolltap.models import Model
from rolltap.record.fold import SessionRecord
from rolltap.record.forest import Node
from rolltap.session import Session
from rolltap.turns.base import Turn
from rolltap.turns.collecting import as_deltas
from rolltap.types.chat import ChatRequest
from rolltap.types.generation import ChatDelta, Completion
from rolltap.types.ledger import SessionInfo

T = TypeVar("T")

RequestKey = tuple[str, str, bytes, str]
"""Session, path, a hash of the body, idempotency key: two requests of one key are the same."""


class Origin(NamedTuple):
    """Where a request came from, and when."""

    dialect: str = ""
    client: str = ""
    """Its `User-Agent`."""
    request_id: str = ""
    id_prefix: str = ""
    """What the reply's id begins with."""
    path: str = ""
    body: bytes = b""
    """A hash of the body; b"" where nobody may join."""
    idempotency_key: str = ""
    retry: bool = False
    """Whether the client says that it has asked before."""
    received: float = 0.0
    """Seconds since the epoch."""


class Clock:
    """Calls `expired` once the time is over that was given; it can be stopped and goes on with what is left."""

    def __init__(self, seconds: float, expired: Callable[[], None]) -> None:
        self._left = seconds
        self._expired = expired
        self._held = 0
        self._timer: asyncio.TimerHandle | None = None
        self._start()

    def _start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(max(0.0, self._left), self._expired)

    def cancel(self) -> None:
        """It is not needed any more."""
        if self._timer is not None:
            self._timer.cancel()

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Stand still for as long as the context lasts."""
        self._held += 1
        if self._held == 1 and self._timer is not None:
            self._left = self._timer.when() - asyncio.get_running_loop().time()
            self._timer.cancel()
        try:
            yield
        finally:
            self._held -= 1
            if not self._held:
                self._start()


class Unrecorded:
    """The session of a request that belongs to none: it records nothing."""

    info: SessionInfo | None = None
    id = ""

    def __init__(self) -> None:
        self.record = SessionRecord()


class CallCut(RequestError):
    """Ends a call early, for a reason that is neither the client's nor the backend's doing."""


Steps = Callable[["Call"], AsyncGenerator[ChatDelta, None]]


class Call:
    """One request on its way: its deltas, its completion, who has joined it, whether it was delivered.

    `deltas` may be read by several: the first reader drives the call, the others follow it. Who has got everything says
    `delivered`, who leaves early says `left`.
    """

    def __init__(
        self,
        request: ChatRequest,
        session: Session | Unrecorded,
        model: Model,
        origin: Origin,
        steps: Steps,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.asked_model = request.model
        self.request = request
        self.session = session
        self.model = model
        self.origin = origin
        self.completion = Completion(
            id=f"{origin.id_prefix}{self.id}", model=model.name, created=int(time.time())
        )
        """The reply: without choices until the call is over."""
        self.nodes: list[Node] = []
        """What was recorded of it."""
        self.recording = False
        """Whether what was generated is being stored, or is."""
        self.ending = False
        """Whether everything has been generated, and its turn's last deltas are known."""
        self.notes: list[str] = []
        """What a reader of its nodes should know of how it came about, in words."""
        self.turn: Turn | None = None
        """The attempt that is being made at a backend."""
        self.sent_at = 0.0
        self.first_token_at: float | None = None
        self.succeeded = False
        self.given_up = False
        """Whether everybody has left it."""
        self.clock: Clock | None = None
        """Ends the call when its time is over."""
        self.on_over: list[Callable[[], None]] = []
        """Called once when it is over."""
        self._steps = steps
        self._driven = False
        self._over = False
        self._error: BaseException | None = None
        self._followers: list[_Follower] = []
        self._served = False
        self._waiting = False
        """Whether the driver waits for something else than its own reader."""
        self._cut: ErrorInfo | None = None
        self._task: asyncio.Task[Any] | None = None
        self._orphan: asyncio.Task[Any] | None = None
        """The driver, where its own client has left and others follow."""

    def hold(self) -> AbstractAsyncContextManager[None]:
        """Stop the call's clock for as long as the context lasts."""
        return self.clock.hold() if self.clock is not None else nullcontext()

    @property
    def recorded_session(self) -> Session | None:
        """The session, where it records."""
        return self.session if isinstance(self.session, Session) else None

    def deltas(self) -> AsyncGenerator[ChatDelta, None]:
        """Every delta from the first on, as they come; then the call's error if it has one.

        An empty delta says that the backend has accepted the request. Raises `RequestError`.
        """
        if self._driven:
            return self._follow()
        self._driven = True
        return self._drive()

    async def _drive(self) -> AsyncGenerator[ChatDelta, None]:
        self._task = asyncio.current_task()
        try:
            async with aclosing(self._steps(self)) as stream:
                while True:
                    if self._cut is not None:
                        await stream.athrow(CallCut(self._cut))
                    self._waiting = True
                    try:
                        delta = await anext(stream)
                    except StopAsyncIteration:
                        break
                    finally:
                        self._waiting = False
                    if self.first_token_at is None and (delta.text or delta.reasoning or delta.tool_calls):
                        self.first_token_at = time.time()
                    for follower in self._followers:
                        follower.give(delta)
                    yield delta
            self.succeeded = True
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._end()

    def cut(self, info: ErrorInfo) -> None:
        """End the call early with this error: what was generated is recorded, whoever reads it is told."""
        if self._over or self._cut is not None:
            return
        self._cut = info
        if self._waiting and self._task is not None:
            self._task.cancel()

    def was_cut(self) -> ErrorInfo | None:
        """In the driver, at a `CancelledError`: the error that the call was cut with, where that is what happened."""
        if self._cut is None or self._task is None or self._task.uncancel() > 0:
            return None
        return self._cut

    async def _follow(self) -> AsyncGenerator[ChatDelta, None]:
        """What came so far, then every delta as it comes."""
        if self._over and self._error is not None:
            raise self._error
        if self._over or self.completion.choices:
            for delta in as_deltas(self.completion.choices):
                yield delta
            return
        ending = self.ending  # the last deltas are about to come: they would say again what the answer holds
        so_far = as_deltas(self.turn.answer().choices, ended=False) if self.turn and not ending else []
        follower = _Follower(so_far)
        self._followers.append(follower)
        try:
            while True:
                while follower.waiting and not ending:
                    yield follower.waiting.popleft()
                if self._over:
                    break
                await follower.news()
            if self._error is not None:
                raise self._error
            for delta in as_deltas(self.completion.choices) if ending else ():
                yield delta
        finally:
            self._followers.remove(follower)
            if not self._followers and self._orphan is not None and not self._over:
                self.given_up = True
                self._orphan.cancel()

    def _end(self) -> None:
        self._over = True
        if self.clock is not None:
            self.clock.cancel()
        self.turn = None
        for follower in self._followers:
            follower.wake()
        for callback in self.on_over:
            callback()

    def abandon(self) -> None:
        """Nobody will read it: it is over without having begun. One that somebody else reads already goes on."""
        if self._driven:
            return
        self.given_up = True
        self._end()

    def finish(self, turn: Turn) -> None:
        """The turn has answered everything: its reply is the call's."""
        choices, _, extra = turn.answer()
        self.completion = msgspec.structs.replace(
            self.completion,
            choices=choices,
            usage=turn.usage(),
            extra=extra,
            ended=int(time.time()),
            node_ids=tuple(node.id for node in self.nodes),
        )

    async def serve(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work of one client, which reads `deltas`. Where it leaves, the call goes on while others follow."""
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._task is task and self._followers:
                self._orphan = task
            else:
                self.given_up = self.given_up or self._task is task
                await _cancelled(task)
            await self.left()
            raise

    async def drain(self, deltas: AsyncGenerator[ChatDelta, None]) -> None:
        """Read on for those who follow, after the driver's own client has left."""
        while self._followers:
            try:
                await anext(deltas)
            except StopAsyncIteration:
                return

    async def delivered(self) -> None:
        """A client has got everything."""
        self._served = True
        session = self.recorded_session
        if session is not None and any(node.delivery == "aborted" for node in self.nodes):
            await session.set_delivery([node.id for node in self.nodes], delivered=True)

    async def left(self) -> None:
        """A client has left before it had everything."""
        session = self.recorded_session
        if self._served or self._followers or session is None or not self.nodes:
            return
        if any(node.delivery != "aborted" for node in self.nodes):
            await session.set_delivery([node.id for node in self.nodes], delivered=False)

    async def wait_over(self) -> None:
        """Wait until the call has ended, well or not."""
        if self._over:
            return
        over = asyncio.get_running_loop().create_future()
        self.on_over.append(lambda: None if over.done() else over.set_result(None))
        await over


async def _cancelled(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task


class _Follower:
    """A reader that has joined a call: the deltas that wait for it."""

    def __init__(self, so_far: list[ChatDelta]) -> None:
        self.waiting = deque(so_far)
        self._news = asyncio.Event()

    def give(self, delta: ChatDelta) -> None:
        self.waiting.append(delta)
        self._news.set()

    def wake(self) -> None:
        self._news.set()

    def news(self) -> Awaitable[Any]:
        self._news.clear()
        return self._news.wait()
