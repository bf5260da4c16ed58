"""What vLLM's two endpoints stream, as token deltas.

Nothing is made up: a delta has logprobs only where the server gave one real number for each of its ids.
"""

import base64
from collections.abc import Iterator
from typing import Any, cast, get_args

import msgspec

from rolltap import FinishReason, Sampling, TokenDelta, UpstreamError
from rolltap_plugins.vllm.parameters import Endpoint

_NO_LOGPROB = -9999.0
"""What vLLM's HTTP server says in place of a logprob that is NaN, minus infinity or missing; no sampled token's is."""

_ID_MARK = "token_id:"
_FINISH_REASONS = frozenset(get_args(FinishReason))


class ReplyReader:
    """Reads the events of one reply. `finished` once each of its choices has ended."""

    def __init__(self, endpoint: Endpoint, sampling: Sampling, logprobs_mode: str) -> None:
        self._endpoint = endpoint
        self._alternatives = bool(sampling.top_logprobs) or "logprob_token_ids" in sampling.extra
        self._logprobs_mode = logprobs_mode
        self._unfinished = set(range(sampling.n))
        self._masks: dict[int, list[list[int]]] = {}

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return not self._unfinished

    def deltas(self, event: dict[str, Any]) -> Iterator[TokenDelta]:
        """The deltas in one event. Raises `UpstreamError` where it has text but no ids."""
        prompt_ids = event.get("prompt_token_ids")
        for choice in event.get("choices") or ():
            delta = self._delta(choice)
            if prompt_ids is not None:
                delta.prompt_token_ids, prompt_ids = prompt_ids, None
            yield delta
        details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
        if details.get("cached_tokens") is not None:
            # Reported last, after the choices have ended.
            yield TokenDelta(
                logprobs=[], cached_tokens=details["cached_tokens"], logprobs_mode=self._logprobs_mode
            )

    def _delta(self, choice: dict[str, Any]) -> TokenDelta:
        index = choice.get("index", 0)
        reason = _finish_reason(choice.get("finish_reason"))
        if reason is not None:
            self._unfinished.discard(index)
        ids, logprobs, alternatives = self._tokens(choice)
        experts = choice.get("routed_experts")
        return TokenDelta(
            index=index,
            token_ids=ids,
            logprobs=_exact(logprobs, len(ids)),
            top_logprobs=alternatives if self._alternatives and len(alternatives) == len(ids) else None,
            finish_reason=reason,
            stop_reason=choice.get("stop_reason"),
            prompt_token_ids=choice.get("prompt_token_ids"),
            logprobs_mode=self._logprobs_mode,
            weight_versions=choice.get("weight_versions"),
            routed_experts=None if experts is None else base64.b64decode(experts),
            sampling_mask=self._sampling_mask(index, choice, last=reason is not None),
        )

    def _tokens(self, choice: dict[str, Any]) -> tuple[list[int], list[float | None], list[dict[int, float]]]:
        """The choice's ids, logprobs and alternatives, as far as they are there."""
        reported = choice.get("logprobs") or {}
        if self._endpoint == "generate":
            content = reported.get("content") or []
            ids = choice.get("token_ids")
            if ids is None:
                ids = [token["token_id"] for token in content]
            alternatives = [_ranked(token) for token in content] if self._alternatives else []
            return ids, [token.get("logprob") for token in content], alternatives
        ids = choice.get("token_ids")
        if ids is None:
            ids = _named_ids(reported.get("tokens"))
        maps = reported.get("top_logprobs") or []
        alternatives = [_named(each) for each in maps] if self._alternatives else []
        return ids, reported.get("token_logprobs") or [], alternatives

    def _sampling_mask(self, index: int, choice: dict[str, Any], *, last: bool) -> bytes | None:
        """The whole choice's mask with its last delta: for each token the ids it was sampled from, as MessagePack."""
        if choice.get("sampling_mask") is not None:
            self._masks.setdefault(index, []).extend(choice["sampling_mask"])
        if last and index in self._masks:
            return msgspec.msgpack.encode(self._masks.pop(index))
        return None


def _exact(logprobs: list[float | None], ids: int) -> list[float] | None:
    """The logprobs, if there is a real one for each id."""
    if len(logprobs) != ids or any(value is None or value == _NO_LOGPROB for value in logprobs):
        return None
    return cast("list[float]", logprobs)


def _ranked(token: dict[str, Any]) -> dict[int, float]:
    return {each["token_id"]: each["logprob"] for each in token.get("top_logprobs") or ()}


def _named(alternatives: dict[str, float] | None) -> dict[int, float]:
    return {int(name.removeprefix(_ID_MARK)): value for name, value in (alternatives or {}).items()}


def _named_ids(tokens: list[str] | None) -> list[int]:
    """Ids from names such as "token_id:42": how servers without `return_token_ids` say them."""
    if tokens is None or not all(token.startswith(_ID_MARK) for token in tokens):
        raise UpstreamError(
            "the vLLM server returned no token ids: it knows neither return_token_ids nor "
            "return_tokens_as_token_ids, so it is too old for token-exact recording; use a newer one, or a chat backend"
        )
    return [int(token.removeprefix(_ID_MARK)) for token in tokens]


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
