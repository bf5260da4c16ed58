"""The way of a request, top to bottom; the one place that knows the order.

    ChatRequest (decoded by a converter)
      └ select_backend      pinned, sticky, healthy: a plugin chooses
          └ turn            ids or messages out, deltas back; tool_parser and reasoning_parser read the text
              └ record_node the finished completion, stored before the last delta
                  └ deltas, to be encoded by the converter
    any exception           classify_error → RequestError

Streaming is the only path: a plain reply is a stream collected.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec

from rolltap.bases.backends import BackendHandle, ChatBackend
from rolltap.classifying import classify
from rolltap.errors import BadRequest, ErrorInfo, PluginError, RequestError, UpstreamError, failure
from rolltap.models import Model, Models
from rolltap.plugins import Plugins
from rolltap.record.forest import Forest, Node
from rolltap.record.views import view
from rolltap.session_settings import pinned
from rolltap.sessions import Session
from rolltap.turns.base import Turn
from rolltap.turns.chat import ChatTurn
from rolltap.turns.collecting import as_message
from rolltap.turns.constraints import constrained
from rolltap.turns.prompts import NOWHERE, TokenPrompt, place, prepare
from rolltap.turns.readers import readers_for
from rolltap.turns.token import TokenTurn
from rolltap.types.chat import ChatRequest, Message
from rolltap.types.generation import ChatDelta, Completion
from rolltap.types.record import ReplyKept

log = logging.getLogger(__name__)

T = TypeVar("T")

FAILOVER_STATUSES = frozenset({429, 502, 503})
"""Upstream failures that say nothing was generated: another backend may be asked before the first byte. A 500 is none
of these: the request itself may be what brings engines down."""

FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.05, 1.0
"""How long to wait before the next backend is asked: twice as long each time, so that many failing at once are not
all asked in the same moment."""

UNHEALTHY_STATUSES = frozenset({500, 502, 503, 504})
"""Failures for which a backend, not the request, is to blame."""


class Pipeline:
    """Answers requests."""

    def __init__(self, models: Models, plugins: Plugins) -> None:
        self._models = models
        self._plugins = plugins
        self._background: set[asyncio.Task[Any]] = set()
        self.counts: Counter[str] = Counter()
        """How many completions were recorded, untrainable, drifted, aborted."""

    async def answer(
        self, request: ChatRequest, session: Session | None, completion: Completion
    ) -> AsyncGenerator[ChatDelta, None]:
        """Answer a request: yield its deltas as they come, fill in `completion` by the end.

        An empty delta says that the backend has accepted the request. Closing the generator stops the backend;
        what was generated is then recorded as aborted. Raises `RequestError`.
        """
        asked, model = request, self.model_for(request, session)
        request = self.effective(request, session, model)
        failed: list[BackendHandle] = []
        while True:
            handle = await self._select(request, session, model, failed)
            started = False
            turn = await self._turn(request, session, model, handle, completion)
            try:
                async with self._models.gate(handle), aclosing(turn.deltas()) as deltas:
                    async for delta in deltas:
                        started = True
                        yield delta
            except (GeneratorExit, asyncio.CancelledError):
                self._in_background(self._record(session, turn, aborted=True))
                raise
            except Exception as error:
                info = await self._blame(error, handle)
                failed.append(handle)
                if not started and info.status in FAILOVER_STATUSES and self._others(model, session, failed):
                    await asyncio.sleep(min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (len(failed) - 1)))
                    continue
                raise RequestError(info) from error
            handle.succeeded()
            completion.node_ids = [node.id for node in await self._record_whole(session, turn)]
            await self._keep_reply(asked, session, completion)
            for delta in turn.ends():
                yield delta
            return

    async def render(self, request: ChatRequest, session: Session | None) -> TokenPrompt:
        """What `answer` would send to a token backend, without asking one."""
        model = self.model_for(request, session)
        return await prepare(self.effective(request, session, model), _forest(session), model)

    async def classify(self, error: BaseException, handle: BackendHandle | None = None) -> ErrorInfo:
        """What an exception means to a client."""
        return await classify(self._plugins, error, handle)

    def client_left(self, session: Session | None, completion: Completion) -> None:
        """Note that the client left before it had the last byte of a completion that is recorded."""
        if session is not None and completion.node_ids:
            self._in_background(session.deliver(completion.node_ids, "aborted"))

    def client_served(self, session: Session | None, completion: Completion) -> None:
        """Note that a client has it all now, where an earlier one of the same call had left."""
        if session is not None and session.is_aborted(completion.node_ids):
            self._in_background(session.deliver(completion.node_ids, "delivered"))

    async def close(self) -> None:
        """Wait until what is still being recorded is stored."""
        while self._background:
            await asyncio.gather(*self._background)

    def model_for(self, request: ChatRequest, session: Session | None) -> Model:
        """The model that a request names, else its session's, else the default."""
        return self._models[request.model or (session.info.model_name if session else "")]

    def effective(self, request: ChatRequest, session: Session | None, model: Model) -> ChatRequest:
        """The request as a backend gets it.

        With the conversation that it refers to by an id and the session's sampling pins; without the text that the
        model's config drops.
        """
        sampling = pinned(request.sampling, session.info.sampling) if session else request.sampling
        own, new = request.messages[: request.num_instructions], request.messages[request.num_instructions :]
        messages = [model.without_volatile(message) for message in (*own, *_earlier(request, session), *new)]
        return msgspec.structs.replace(request, sampling=sampling, messages=messages)

    async def _select(
        self, request: ChatRequest, session: Session | None, model: Model, failed: list[BackendHandle]
    ) -> BackendHandle:
        candidates = self._others(model, session, failed)
        info = session.info if session else None
        chosen = await self._plugins.ask("select_backend", request=request, session=info, backends=candidates)
        handle: BackendHandle = candidates[0] if chosen is None else chosen.value
        if chosen is not None and handle not in candidates:
            names = ", ".join(candidate.name for candidate in candidates)
            raise failure(
                chosen.plugin,
                f"select_backend chose {handle.name} of {handle.model}, which is none of: {names}",
            )
        _check_parameters(request, handle)
        return handle

    def _others(
        self, model: Model, session: Session | None, failed: list[BackendHandle]
    ) -> list[BackendHandle]:
        pinned_url = session.info.base_url if session and session.info.model_name == model.name else None
        return [handle for handle in model.candidates(pinned_url) if handle not in failed]

    async def _turn(
        self,
        request: ChatRequest,
        session: Session | None,
        model: Model,
        handle: BackendHandle,
        completion: Completion,
    ) -> Turn:
        forest = _forest(session)
        info = session.info if session else None
        if isinstance(handle.backend, ChatBackend):
            if request.prompt is not None:
                raise BadRequest(f"model {model.name!r} answers chats only, no raw prompts", param="prompt")
            conversation = NOWHERE
            if session is not None:
                conversation = place(request, forest, model=model.name, tokens=False)
            readers = (
                await readers_for(self._plugins, request, info, model) if handle.backend.raw_text else None
            )
            return ChatTurn(request, handle, completion, conversation=conversation, readers=readers)
        request = constrained(request, handle)
        prompt = await prepare(request, forest, model)
        readers = await readers_for(self._plugins, request, info, model, prompt_tail=prompt.tail)
        return TokenTurn(
            request, handle, completion, prompt=prompt, renderer=model.tokenizing, readers=readers
        )

    async def _blame(self, error: Exception, handle: BackendHandle) -> ErrorInfo:
        """Classify a backend's failure, and leave the backend out for a while where it is the one to blame."""
        info = await self.classify(error, handle)
        if isinstance(error, PluginError):
            log.error("%s", error, exc_info=error)
        elif info.status in UNHEALTHY_STATUSES and not isinstance(error, RequestError):
            if info.status == 500 and info.message == str(error) and not isinstance(error, UpstreamError):
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

    async def _record(self, session: Session | None, turn: Turn, *, aborted: bool = False) -> list[Node]:
        """Store what the turn generated, then tell the plugins."""
        self.counts["drifted"] += turn.drifted
        entry = turn.entry(session.forest, aborted=aborted) if session is not None else None
        if session is None or entry is None:
            return []
        nodes = await session.append(entry)
        for node in nodes:
            self.counts["nodes"] += 1
            self.counts["untrainable"] += not node.trainable
            self.counts["aborted"] += aborted
            if not node.trainable and node.has_tokens:
                log.warning(
                    "session %s: node %s is untrainable: %s",
                    session.info.uuid,
                    node.id,
                    node.output.untrainable_reason,
                )
            seen = view(node, tree=session.info.track_tree, decode=self._models[node.call.model].decode)
            await self._plugins.notify("record_node", session=session.info, node=seen)
        return nodes

    async def _keep_reply(self, asked: ChatRequest, session: Session | None, completion: Completion) -> None:
        """Keep a reply that a later request may refer to by its id."""
        if session is not None and asked.keep:
            previous, new = asked.previous_id, asked.messages[asked.num_instructions :]
            if previous is None:
                previous, repeated = session.repeated(new)
                new = new[repeated:]
            messages = [*new, *map(as_message, completion.choices[:1])]
            await session.append(ReplyKept(id=completion.id, previous_id=previous, messages=messages))

    async def _record_whole(self, session: Session | None, turn: Turn) -> list[Node]:
        """Record a turn that has ended, to the end also where the client leaves meanwhile: it is aborted then."""
        if session is None:
            return await self._record(None, turn)
        recording = self._in_background(self._record(session, turn))
        try:
            return await asyncio.shield(recording)
        except asyncio.CancelledError:
            self._in_background(self._not_delivered(session, recording))
            raise

    async def _not_delivered(self, session: Session, recording: "asyncio.Task[list[Node]]") -> None:
        nodes = await recording
        if nodes:
            await session.deliver([node.id for node in nodes], "aborted")

    def _in_background(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Finish work that must not be lost with the request it belongs to."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _earlier(request: ChatRequest, session: Session | None) -> list[Message]:
    if request.previous_id is None:
        return []
    if session is None:
        raise BadRequest(
            "a reply can be referred to by its id only within a session", param="previous_response_id"
        )
    return session.conversation(request.previous_id)


def _check_parameters(request: ChatRequest, handle: BackendHandle) -> None:
    """Nothing that a client asked for is dropped in silence."""
    takes = handle.backend.parameters
    unknown = sorted(request.sampling.names() - takes) if takes is not None else []
    if unknown:
        raise BadRequest(
            f"backend {handle.name} of model {handle.model!r} takes no parameter {unknown[0]!r}",
            param=unknown[0],
        )


def _forest(session: Session | None) -> Forest:
    return session.forest if session is not None else Forest()
