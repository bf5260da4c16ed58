"""What vLLM's two endpoints answer, streamed or whole, as token deltas.

Nothing is made up: a delta has logprobs only where the server gave one real number for each of its ids.
"""

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, cast, get_args

import msgspec
from msgspec import Meta, Struct

from rolltap import FinishReason, TokenDelta, TokenRequest, UpstreamError
from rolltap_plugins.upstream.backend import VersionSpan, version_spans
from rolltap_plugins.upstream.errors import told_error, unreadable
from rolltap_plugins.upstream.http import Upstream
from rolltap_plugins.vllm.parameters import Endpoint

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]

_NO_LOGPROB = -9999.0
"""What vLLM's HTTP server says in place of a logprob that is NaN, minus infinity or missing; no sampled token's is."""

_ID_MARK = "token_id:"
_FINISH_REASONS = frozenset(get_args(FinishReason))


class _Ranked(Struct):
    token_id: TokenId
    logprob: float | None = None
    top_logprobs: list["_Ranked"] | None = None


class _Logprobs(Struct):
    """`content` is the token endpoint's, the others are those of `/v1/completions`."""

    content: list[_Ranked] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None


class _Choice(Struct):
    index: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[TokenId] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    weight_versions: list[VersionSpan] | None = None
    routed_experts: str | None = None
    sampling_mask: list[list[int]] | None = None


class _PromptDetails(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens_details: _PromptDetails | None = None


class _Reply(Struct):
    """A whole reply, or an event of a streamed one."""

    choices: list[_Choice] | None = None
    prompt_token_ids: list[int] | None = None
    usage: _Usage | None = None
    error: Any = None


_replies = msgspec.json.Decoder(_Reply)


class ReplyReader:
    """Reads one reply, event by event or whole. `finished` once each of its choices has ended."""

    def __init__(
        self, endpoint: Endpoint, request: TokenRequest, logprobs_mode: str, server: Upstream
    ) -> None:
        sampling = request.sampling
        self._endpoint = endpoint
        self._server = server
        self._alternatives = bool(sampling.top_logprobs) or "logprob_token_ids" in sampling.extra
        self._logprobs_mode = logprobs_mode
        self._unfinished = set(range(sampling.n))
        self._masks: dict[int, list[list[int]]] = {}
        self._lengths = dict.fromkeys(range(sampling.n), 0)

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return not self._unfinished

    def span(self, index: int, before: int | str | None, after: int | str | None) -> list[Any] | None:
        """The choice's tokens as one span, from the versions that the server told before and after the request."""
        if before is None and after is None:
            return None
        return [[0, self._lengths[index], after if before == after else [before, after]]]

    def deltas(self, data: bytes) -> Iterator[TokenDelta]:
        """The deltas in one event, or in the whole reply. Raises `UpstreamError` for what has no ids, and for errors."""
        reply = self._server.decode(data, _replies)
        if reply.error is not None:
            raise self._server.told(told_error(reply.error, self._server.name))
        prompt_ids = reply.prompt_token_ids
        for choice in reply.choices or ():
            delta = self._delta(choice)
            if prompt_ids is not None:
                delta.prompt_token_ids, prompt_ids = prompt_ids, None
            yield delta
        details = reply.usage.prompt_tokens_details if reply.usage else None
        if details is not None and details.cached_tokens is not None:
            # Reported last, after the choices have ended.
            yield TokenDelta(
                logprobs=[], cached_tokens=details.cached_tokens, logprobs_mode=self._logprobs_mode
            )

    def _delta(self, choice: _Choice) -> TokenDelta:
        index = choice.index
        if index not in self._lengths:
            raise unreadable(self._server.name, f"it has choice {index} of {len(self._lengths)}")
        reason = _finish_reason(choice.finish_reason)
        if reason is not None:
            self._unfinished.discard(index)
        ids, logprobs, alternatives = self._tokens(choice)
        self._lengths[index] += len(ids)
        return TokenDelta(
            index=index,
            token_ids=ids,
            logprobs=_exact(logprobs, len(ids)),
            top_logprobs=alternatives if self._alternatives and len(alternatives) == len(ids) else None,
            finish_reason=reason,
            stop_reason=choice.stop_reason,
            prompt_token_ids=choice.prompt_token_ids,
            logprobs_mode=self._logprobs_mode,
            weight_versions=version_spans(choice.weight_versions),
            routed_experts=self._experts(choice.routed_experts),
            sampling_mask=self._sampling_mask(choice, last=reason is not None),
        )

    def _tokens(self, choice: _Choice) -> tuple[list[int], list[float | None], list[dict[int, float]]]:
        """The choice's ids, logprobs and alternatives, as far as they are there."""
        reported = choice.logprobs or _Logprobs()
        if self._endpoint == "generate":
            content = reported.content or []
            ids = choice.token_ids
            if ids is None:
                ids = [token.token_id for token in content]
            alternatives = [_ranked(token) for token in content] if self._alternatives else []
            return ids, [token.logprob for token in content], alternatives
        ids = choice.token_ids
        if ids is None:
            ids = self._named_ids(reported.tokens)
        maps = reported.top_logprobs or []
        alternatives = [self._named(each or {}) for each in maps] if self._alternatives else []
        return ids, reported.token_logprobs or [], alternatives

    def _named(self, alternatives: dict[str, float | None]) -> dict[int, float]:
        return {self._named_id(name): value for name, value in alternatives.items() if value is not None}

    def _named_ids(self, tokens: list[str] | None) -> list[int]:
        """Ids from names such as "token_id:42": how servers without `return_token_ids` say them."""
        if tokens is None or not all(token.startswith(_ID_MARK) for token in tokens):
            raise UpstreamError(
                "the vLLM server returned no token ids: it knows neither return_token_ids nor "
                "return_tokens_as_token_ids, so it is too old for token-exact recording; use a newer one, or a chat "
                "backend"
            )
        return [self._named_id(token) for token in tokens]

    def _named_id(self, name: str) -> int:
        digits = name.removeprefix(_ID_MARK)
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            raise unreadable(self._server.name, f"it names a token {name!r}")
        return int(digits)

    def _experts(self, encoded: str | None) -> bytes | None:
        if encoded is None:
            return None
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise unreadable(self._server.name, f"routed_experts: {error}") from error

    def _sampling_mask(self, choice: _Choice, *, last: bool) -> bytes | None:
        """The whole choice's mask with its last delta: for each token the ids it was sampled from, as MessagePack."""
        if choice.sampling_mask is not None:
            self._masks.setdefault(choice.index, []).extend(choice.sampling_mask)
        if last and choice.index in self._masks:
            return msgspec.msgpack.encode(self._masks.pop(choice.index))
        return None


def _exact(logprobs: list[float | None], ids: int) -> list[float] | None:
    """The logprobs, if there is a real one for each id."""
    if len(logprobs) != ids or any(value is None or value == _NO_LOGPROB for value in logprobs):
        return None
    return cast("list[float]", logprobs)


def _ranked(token: _Ranked) -> dict[int, float]:
    return {each.token_id: each.logprob for each in token.top_logprobs or () if each.logprob is not None}


def _finish_reason(reason: str | None) -> FinishReason | None:
    if reason is None:
        return None
    if reason == "repetition":  # a stop of the engine's own, told by stop_reason
        return "stop"
    if reason not in _FINISH_REASONS:
        raise UpstreamError(
            f"the vLLM server ended a choice with finish_reason {reason!r}, which is not known"
        )
    return cast("FinishReason", reason)


def joined(deltas: Sequence[TokenDelta]) -> list[TokenDelta]:
    """The deltas that came together, those of one choice made one: each is detokenized, parsed and sent at once."""
    if len(deltas) < 2:
        return [*deltas]
    found: list[TokenDelta] = []
    last: dict[int, TokenDelta] = {}
    for delta in deltas:
        before = last.get(delta.index)
        if before is None or not _goes_on(before, delta):
            found.append(delta)
            last[delta.index] = delta
            continue
        before.token_ids += delta.token_ids
        if before.logprobs is not None and delta.logprobs is not None:
            before.logprobs += delta.logprobs
        before.finish_reason, before.stop_reason = delta.finish_reason, delta.stop_reason
        before.weight_versions = delta.weight_versions
        before.routed_experts, before.sampling_mask = delta.routed_experts, delta.sampling_mask
    return found


def _goes_on(before: TokenDelta, delta: TokenDelta) -> bool:
    """Whether a delta has nothing but the next tokens and how its choice ends, as the one before has the tokens."""
    same = (before.logprobs is None) == (delta.logprobs is None)
    ended = before.finish_reason or before.weight_versions or before.routed_experts or before.sampling_mask
    other = delta.top_logprobs or before.top_logprobs or delta.prompt_token_ids or delta.cached_tokens
    return same and not ended and not other
