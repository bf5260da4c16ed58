"""The way of a request, top to bottom; the one place that knows the order.

    ChatRequest (decoded by a converter)
      └ begin               same as a call in flight? the session, its limits and pins, the model → Call
          └ select_backend      pinned, sticky, healthy: a plugin chooses
              └ turn            ids or messages out, deltas back; tool_parser and reasoning_parser read the text
                  └ record_node the finished completion, stored before the last delta
                      └ deltas, to be encoded by the converter
    any exception           classify_error → RequestError

Pieces go through the same reading whether they come one by one or all at once.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

import msgspec

from rolltap.backend_handle import BackendHandle
from rolltap.bases.backends import ChatBackend, TokenBackend
from rolltap.call import Call, CallCut, Clock, Origin, Unrecorded
from rolltap.classifying import classify
from rolltap.errors import (
    BadRequest,
    ErrorInfo,
    PluginError,
    RequestError,
    StoreError,
    UpstreamError,
    failure,
)
from rolltap.idempotency import SameCalls
from rolltap.models import Model, Models
from rolltap.plugins import Plugins
from rolltap.recording import Recorder
from rolltap.session import Session
from rolltap.session_settings import pinned
from rolltap.turns.base import Turn
from rolltap.turns.chat import ChatTurn
from rolltap.turns.constraints import constrained
from rolltap.turns.continuing import Continuation, EngineAborted, RestartCall
from rolltap.turns.prompts import Placement, TokenPrompt, find_parent, prepare
from rolltap.turns.readers import readers_for
from rolltap.turns.token import TokenTurn, aborted_error
from rolltap.types.chat import ChatRequest, Message
from rolltap.types.generation import ChatDelta
from rolltap.types.ledger import CallBegun, Context
from rolltap.weights import WeightUpdates

log = logging.getLogger(__name__)

T = TypeVar("T")

FAILOVER_STATUSES = frozenset({429, 502, 503})
"""Upstream failures that say nothing was generated: another backend may be asked before the first byte. A 500 is none
of these: the request itself may be what brings engines down."""

FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.05, 1.0
"""How long to wait before the next backend is asked: twice as long each time, so that many failing at once are not
all asked in the same moment."""

_SHUTTING_DOWN = ErrorInfo(
    status=503, message="the server is shutting down; ask again", code="shutting_down", retry_after=5
)

_CUT_WITHIN_S = 5.0
"""How long a call that was cut may take to record what it has and to tell its client."""

UNHEALTHY_STATUSES = frozenset({500, 502, 503, 504})
"""Failures for which a backend, not the request, is to blame."""


class Pipeline:
    """Answers requests."""

    def __init__(self, models: Models, plugins: Plugins, *, request_timeout_s: float | None = None) -> None:
        self._models = models
        self.updates = WeightUpdates([handle for model in models for handle in model.backends])
        """Pauses and versions of the engines."""
        self._plugins = plugins
        self._request_timeout_s = request_timeout_s
        self._same = SameCalls()
        self.recorder = Recorder(models, plugins)
        self.running: set[Call] = set()
        """The calls in flight."""
        self.draining = False
        """Whether the server is about to end."""

    def begin(
        self,
        request: ChatRequest,
        session: Session | Unrecorded,
        origin: Origin = Origin(),  # noqa: B008 - frozen
    ) -> Call:
        """The call that answers a request: a new one, or one that the same request has begun already.

        Raises `RequestError` where the session takes no more calls, or the model is unknown.
        """
        key = (session.id, origin.path, origin.body, origin.idempotency_key)
        recorded = isinstance(session, Session)
        if recorded and origin.body:
            known = self._same.find(key, retry=origin.retry)
            if known is not None:
                return known
        if isinstance(session, Session):
            session.check_open()
        model = self.model_for(request, session)
        call = Call(self.effective(request, session, model), session, model, origin, self._steps)
        call.asked_model = request.model
        self.running.add(call)
        call.on_over.append(lambda: self.running.discard(call))
        if isinstance(session, Session):
            session.calls.add(call)
            call.on_over.append(lambda: session.calls.discard(call))
            if origin.body:
                self._same.begun(key, call)
                call.on_over.append(lambda: self._same.ended(key, call))
        if self._request_timeout_s is not None:
            call.clock = Clock(self._request_timeout_s, lambda: call.cut(self._too_long()))
        return call

    async def render(self, request: ChatRequest, session: Session | Unrecorded) -> TokenPrompt:
        """What a call would send to a token backend, without asking one."""
        model = self.model_for(request, session)
        return await prepare(self.effective(request, session, model), session.record, model)

    async def classify(self, error: BaseException, handle: BackendHandle | None = None) -> ErrorInfo:
        """What an exception means to a client."""
        return await classify(self._plugins, error, handle)

    async def drain(self, limit_s: float) -> None:
        """Wait for the calls in flight; after the limit, end what still runs with an error that says so."""
        self.draining = True
        if self.running:
            waits = [asyncio.ensure_future(call.wait_over()) for call in self.running]
            _, late = await asyncio.wait(waits, timeout=limit_s)
            for call in [*self.running]:
                call.cut(_SHUTTING_DOWN)
            if late:
                await asyncio.wait(late, timeout=_CUT_WITHIN_S)

    @property
    def counts(self) -> Counter[str]:
        """How many completions were recorded, untrainable, drifted, aborted."""
        return self.recorder.counts

    async def close(self) -> None:
        """Wait until what is still being recorded is stored."""
        await self.recorder.close()

    def model_for(self, request: ChatRequest, session: Session | Unrecorded) -> Model:
        """The model that a request names, else its session's, else the default.

        In a session, a name that is not configured may mean the session's own: agents ask for models of their maker's.
        """
        info = session.info
        if info is None:
            return self._models[request.model]
        if not request.model or (
            self._models.unknown_model == "session" and request.model not in self._models
        ):
            return self._models[info.model_name]
        return self._models[request.model]

    def effective(self, request: ChatRequest, session: Session | Unrecorded, model: Model) -> ChatRequest:
        """The request as a backend gets it.

        With the conversation that it refers to by an id and the session's sampling pins; without the text that the
        model's config drops.
        """
        info = session.info
        sampling = pinned(request.sampling, info.sampling) if info is not None else request.sampling
        messages = request.messages
        if request.previous_id is not None:
            own, new = messages[: request.num_instructions], messages[request.num_instructions :]
            messages = (*own, *_earlier(request.previous_id, session), *new)
        return msgspec.structs.replace(
            request, sampling=sampling, messages=model.without_volatile(messages), model=model.name
        )

    async def _steps(self, call: Call) -> AsyncGenerator[ChatDelta, None]:
        """Answer a call: its deltas as they come; it is recorded before the last ones."""
        try:
            async with aclosing(self._attempts(call)) as deltas:
                async for delta in deltas:
                    yield delta
        except CallCut as cut:
            await self.recorder.cut(call, cut.info)
            raise
        except (GeneratorExit, asyncio.CancelledError):
            info = call.was_cut()
            if info is not None:
                await self.recorder.cut(call, info)
                raise CallCut(info) from None
            self.recorder.in_background(self.recorder.left(call, call.turn))
            raise
        except StoreError:
            raise
        except Exception as error:
            await self.recorder.note_failed(call, error)
            raise

    async def _attempts(self, call: Call) -> AsyncGenerator[ChatDelta, None]:
        """Ask one backend after the other until one has answered."""
        failed: list[BackendHandle] = []
        turn: Turn | None = None
        if self.updates.paused:
            async with call.hold():
                await self.updates.wait_open(call.model.config.pause_limit_s)
        while True:
            if turn is None:
                turn = call.turn = await self._turn(call, await self._select(call, failed))
                call.completion.usage = turn.usage()
            handle = turn.handle
            started = False
            try:
                async with handle.slot(), aclosing(turn.deltas()) as deltas:
                    await self._announce(call)
                    async for delta in deltas:
                        started = True
                        yield delta
            except (CallCut, StoreError):
                raise
            except Exception as error:  # noqa: BLE001 - whatever a backend raises is classified
                turn = await self._after_failure(call, turn, error, failed, started=started)
                continue
            handle.succeeded()
            ends, call.ending = turn.final_deltas(), True
            await self.recorder.whole(call, turn)
            call.finish(turn)
            for delta in ends:
                yield delta
            return

    async def _after_failure(
        self, call: Call, turn: Turn, error: Exception, failed: list[BackendHandle], *, started: bool
    ) -> Turn | None:
        """What to do next: the turn that goes on elsewhere, or None to begin anew. Raises where it was the last try."""
        if isinstance(error, RestartCall):
            call.notes.append("the engine gave the generation up; it was begun anew")
            return None
        if isinstance(error, EngineAborted):
            raise CallCut(aborted_error(error).info) from error
        info = await self._blame(error, turn.handle)
        failed.append(turn.handle)
        others = self._candidates(call, failed) if info.status in FAILOVER_STATUSES else []
        if not others:
            raise RequestError(info) from error
        if started:
            goes_on = call.model.config.on_engine_loss == "continue"
            if not (goes_on and isinstance(turn, TokenTurn) and turn.move_to(others[0])):
                raise RequestError(info) from error
            call.notes.append(f"backend {turn.handle.name} went on after {failed[-1].name} was lost")
        await asyncio.sleep(min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (len(failed) - 1)))
        return turn if started else None

    async def _announce(self, call: Call) -> None:
        """Write that the call has begun, where a log outlives this process."""
        session, again = call.recorded_session, bool(call.sent_at)
        call.sent_at = call.sent_at or time.time()
        if session is not None and session.durable and not again:
            await session.append(
                CallBegun(call_id=call.id, request_id=call.origin.request_id, begun_at=call.sent_at)
            )

    def _too_long(self) -> ErrorInfo:
        return ErrorInfo(
            status=504,
            message=f"the answer took longer than server.request_timeout_s = {self._request_timeout_s:g}",
            code="timeout",
        )

    async def _select(self, call: Call, failed: list[BackendHandle]) -> BackendHandle:
        candidates = self._candidates(call, failed)
        chosen = await self._plugins.ask(
            "select_backend",
            request=call.request,
            session=call.session.info,
            backends=[candidate.view for candidate in candidates],
        )
        handle = candidates[0]
        if chosen is not None:
            found = [candidate for candidate in candidates if candidate.view is chosen.value]
            if not found:
                names = ", ".join(candidate.name for candidate in candidates)
                raise failure(
                    chosen.plugin,
                    f"select_backend chose {chosen.value.name} of {chosen.value.model}, which is none of: {names}",
                )
            handle = found[0]
        _check_parameters(call.request, handle)
        return handle

    def _candidates(self, call: Call, failed: list[BackendHandle]) -> list[BackendHandle]:
        info, model = call.session.info, call.model
        pin = info.base_url if info is not None and info.model_name == model.name else None
        return [handle for handle in model.candidates(pin) if handle not in failed]

    async def _turn(self, call: Call, handle: BackendHandle) -> Turn:
        request, model, backend = call.request, call.model, handle.backend
        record, info = call.session.record, call.session.info
        if isinstance(backend, ChatBackend):
            if request.prompt is not None:
                raise BadRequest(f"model {model.name!r} answers chats only, no raw prompts", param="prompt")
            if request.return_token_ids:
                raise BadRequest(
                    f"backend {handle.name} of model {model.name!r} works in text: there are no ids to return",
                    param="return_token_ids",
                )
            placement = Placement(
                Context(model.name)
            )  # without a session, finding it would be work for nothing
            if call.recorded_session is not None:
                placement = find_parent(request, record, model=model.name, tokens=False)
            readers = await readers_for(self._plugins, request, info, model) if backend.raw_text else None
            return ChatTurn(request, handle, backend=backend, placement=placement, readers=readers)
        assert isinstance(backend, TokenBackend)  # noqa: S101 - the plugin manager lets no other kind in
        request = constrained(request, handle)
        prompt = await prepare(request, record, model)
        return TokenTurn(
            request,
            handle,
            prompt=prompt,
            renderer=model.tokenizing,
            readers=await readers_for(self._plugins, request, info, model, prompt_tail=prompt.tail),
            continuation=Continuation(
                self.updates,
                call.hold,
                on_abort=model.config.on_abort,
                pause_limit_s=model.config.pause_limit_s,
                salted=model.config.cache_salt == "version",
            ),
            session=call.session.id,
            request_id=call.origin.request_id,
        )

    async def _blame(self, error: Exception, handle: BackendHandle) -> ErrorInfo:
        """Classify a backend's failure, and leave the backend out for a while where it is the one to blame."""
        info = await self.classify(error, handle)
        if isinstance(error, PluginError):
            log.error("%s", error, exc_info=error)
        elif info.status in UNHEALTHY_STATUSES and not isinstance(error, RequestError):
            if info.status == 500 and info.message == str(error) and not _is_an_answer(error):
                info = self._named(info, error, handle)
            handle.failed(info.message)
            log.warning("backend %s of %s failed: %s", handle.name, handle.model, info.message)
        return info

    def _named(self, info: ErrorInfo, error: Exception, handle: BackendHandle) -> ErrorInfo:
        """A failure that nobody knows a word for: most likely one of the backend's own code."""
        self._plugins.failures[handle.plugin] += 1
        log.error("plugin %s: its backend %s failed", handle.plugin, handle.name, exc_info=error)
        message = f"backend {handle.name} (plugin {handle.plugin}) raised {type(error).__name__}: {error}"
        return msgspec.structs.replace(info, message=message)


def _earlier(previous_id: str, session: Session | Unrecorded) -> list[Message]:
    if not isinstance(session, Session):
        raise BadRequest(
            "a reply can be referred to by its id only within a session", param="previous_response_id"
        )
    return session.record.conversation_of(previous_id)


def _is_an_answer(error: Exception) -> bool:
    """Whether an exception tells of an upstream's answer, as the SDKs' own do, and not of a fault in the plugin."""
    return isinstance(error, UpstreamError) or isinstance(getattr(error, "status_code", None), int)


def _check_parameters(request: ChatRequest, handle: BackendHandle) -> None:
    """Nothing that a client asked for is dropped in silence."""
    takes = handle.backend.parameters
    unknown = sorted(request.sampling.names() - takes) if takes is not None else []
    if unknown:
        raise BadRequest(
            f"backend {handle.name} of model {handle.model!r} takes no parameter {unknown[0]!r}",
            param=unknown[0],
        )
