"""What SGLang's `/generate` answers, streamed or whole, as token deltas.

A stream's events hold either all that was generated so far, or only what is new (`--incremental-streaming-output`);
which it is shows in each event, since `completion_tokens` always counts everything. Nothing is made up.
"""

import base64
import binascii
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import Meta, Struct, field

from rolltap import FinishReason, TokenDelta, TokenRequest, UpstreamError
from rolltap_plugins.upstream.backend import VersionSpan, as_version, version_spans
from rolltap_plugins.upstream.errors import told_error, unreadable
from rolltap_plugins.upstream.http import Upstream

T = TypeVar("T")

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Count = Annotated[int, Meta(ge=0, lt=2**31)]

_FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


class _Token(Struct, array_like=True):
    """`[logprob, id, text]`; a prompt's first token has no logprob."""

    logprob: float | None
    token_id: TokenId


class _Finish(Struct):
    type: str
    matched: int | str | list[int] | None = None
    message: str | None = None
    status_code: int | None = None


class _MetaInfo(Struct):
    finish_reason: _Finish | None = None
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    cached_tokens: Count | None = None
    weight_version: str | int | None = None
    weight_versions: list[VersionSpan] | None = None
    input_token_logprobs: list[_Token] | None = None
    output_token_logprobs: list[_Token] | None = None
    output_top_logprobs: list[list[_Token] | None] | None = None
    output_token_sampling_mask: list[list[int]] | None = None
    routed_experts: str | None = None


class _Reply(Struct):
    """One choice: as it is so far, or as it is in the end."""

    index: int = 0
    output_ids: list[TokenId] | None = None
    prompt_token_ids: list[int] | None = None
    meta_info: _MetaInfo = field(default_factory=_MetaInfo)
    error: Any = None


_event = msgspec.json.Decoder(_Reply)
_whole = msgspec.json.Decoder(list[_Reply] | _Reply)


class _Choice:
    """What was read of a choice so far."""

    def __init__(self) -> None:
        self.seen = 0
        self.masks: list[list[int]] = []
        self.finished = False


class ReplyReader:
    """Reads one reply, event by event or whole. `finished` once each of its choices has ended."""

    def __init__(
        self, request: TokenRequest, logprobs_mode: str, server: Upstream, before: int | str | None = None
    ) -> None:
        """`before`: the version of the weights when the request set out, where the replies don't place versions."""
        self._server = server
        self._stream = request.stream
        self._alternatives = bool(request.sampling.top_logprobs)
        self._logprobs_mode = logprobs_mode
        self._before = before
        self._choices = [_Choice() for _ in range(request.sampling.n)]
        self._counted = self._proved = False
        self.placed_versions = False
        """Whether the engine has said which version wrote which token."""

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return all(choice.finished for choice in self._choices)

    def event(self, data: bytes) -> TokenDelta:
        """The delta that an event of a stream is. Raises `UpstreamError`, also for an error that it tells of."""
        return self._delta(self._server.decode(data, _event))

    def whole(self, data: bytes) -> Iterator[TokenDelta]:
        """The deltas of a whole reply, one a choice: several choices are a list in their order."""
        replies = self._server.decode(data, _whole)
        for index, reply in enumerate(replies if isinstance(replies, list) else [replies]):
            reply.index = index
            yield self._delta(reply)

    def _delta(self, reply: _Reply) -> TokenDelta:
        meta = reply.meta_info
        if reply.error is not None:
            raise self._server.told(told_error(reply.error, self._server.name))
        if not 0 <= reply.index < len(self._choices):
            raise unreadable(self._server.name, f"it has choice {reply.index} of {len(self._choices)}")
        choice = self._choices[reply.index]
        reported = meta.output_token_logprobs
        ids = reply.output_ids
        if ids is None:
            if reported is None:
                raise UpstreamError(
                    f"{self._server.name} returned no token ids: it is too old for token-exact recording"
                )
            ids = [token.token_id for token in reported]
        total = self._total(meta, ids)
        new = total - choice.seen
        delta = TokenDelta(
            index=reply.index,
            token_ids=_fresh(ids, choice.seen, total) or [],
            logprobs_mode=self._logprobs_mode,
        )
        if new < 0 or len(delta.token_ids) != new:
            raise unreadable(
                self._server.name, f"{len(ids)} ids where {total} were generated, {choice.seen} known"
            )
        tokens = _fresh(reported or [], choice.seen, total)
        delta.logprobs = _exact(tokens, delta.token_ids)
        if self._alternatives:
            tops = _fresh(meta.output_top_logprobs or [], choice.seen, total)
            delta.top_logprobs = None if tops is None else [_ranked(top) for top in tops]
        choice.masks += _fresh(meta.output_token_sampling_mask or [], choice.seen, total) or []
        choice.seen = total
        self._prompt(delta, reply)
        if meta.finish_reason is not None:
            self._finish(delta, choice, meta, meta.finish_reason)
        return delta

    def _total(self, meta: _MetaInfo, ids: list[int]) -> int:
        """How many tokens the choice has so far."""
        if not self._stream:
            return len(ids)
        if meta.completion_tokens is None:
            raise unreadable(self._server.name, "an event lacks completion_tokens")
        return meta.completion_tokens

    def _prompt(self, delta: TokenDelta, reply: _Reply) -> None:
        """What the reply proves of the prompt: its ids with their logprobs, its ids, or how many they are."""
        meta = reply.meta_info
        if not self._counted and meta.prompt_tokens is not None:
            self._counted = True
            delta.num_prompt_tokens = meta.prompt_tokens
        if self._proved:
            return
        if meta.input_token_logprobs:
            delta.prompt_token_ids = [token.token_id for token in meta.input_token_logprobs]
            delta.prompt_proof = "logprobs"
        else:
            delta.prompt_token_ids = reply.prompt_token_ids
        self._proved = delta.prompt_token_ids is not None

    def _finish(self, delta: TokenDelta, choice: _Choice, meta: _MetaInfo, end: _Finish) -> None:
        if end.type == "abort" and end.status_code is not None and 400 <= end.status_code < 600:
            error = {"message": end.message or "aborted", "code": end.status_code}
            raise self._server.told(told_error(error, self._server.name))
        if end.type not in _FINISH_REASONS:
            raise UpstreamError(
                f"{self._server.name} ended a choice with finish_reason {end.type!r}, which is not known"
            )
        choice.finished = True
        delta.finish_reason = _FINISH_REASONS[end.type]
        matched = end.matched
        delta.stop_reason = (matched[-1] if matched else None) if isinstance(matched, list) else matched
        delta.cached_tokens = meta.cached_tokens
        delta.weight_versions = self._versions(meta, choice.seen)
        if meta.routed_experts is not None:
            try:
                delta.routed_experts = base64.b64decode(meta.routed_experts, validate=True)
            except (binascii.Error, ValueError) as error:
                raise unreadable(self._server.name, f"routed_experts: {error}") from error
        if choice.masks:
            delta.sampling_mask = msgspec.msgpack.encode(choice.masks)

    def _versions(self, meta: _MetaInfo, length: int) -> list[Any] | None:
        if meta.weight_versions:
            self.placed_versions = True
            return version_spans(meta.weight_versions)
        after = as_version(meta.weight_version)
        if after is None and self._before is None:
            return None
        return [[0, length, after if after == self._before else [self._before, after]]]


def _fresh(values: list[T], seen: int, total: int) -> list[T] | None:
    """Those of the values that belong to tokens `[seen, total)`, from all so far or from the last ones alone; None
    where they are fewer.
    """
    if len(values) >= total:
        return values[seen:total]
    new = total - seen
    return values[len(values) - new :] if 0 <= new <= len(values) else None


def _exact(tokens: list[_Token] | None, ids: list[int]) -> list[float] | None:
    """The logprobs, if there is a real one for each id."""
    if tokens is None or [token.token_id for token in tokens] != ids:
        return None
    logprobs = [token.logprob for token in tokens]
    return None if None in logprobs else cast("list[float]", logprobs)


def _ranked(tokens: list[_Token] | None) -> dict[int, float]:
    return {token.token_id: token.logprob for token in tokens or () if token.logprob is not None}
