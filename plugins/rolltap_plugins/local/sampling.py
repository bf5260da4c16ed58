"""From logits to a token: what was asked is checked, and applied by transformers' processors in vLLM's order.

Order: min_tokens, logit_bias, penalties, then (unless greedy) temperature, min_p, top_k, top_p. Presence and
frequency penalties look at the output, the repetition penalty at the prompt too, as in vLLM. What a request leaves
open comes from the model's generation config, and else is off (temperature 1).
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from rolltap import BadRequest, FinishReason, Sampling

if TYPE_CHECKING:
    import torch
    from transformers import LogitsProcessor, LogitsProcessorList

_UNREAD: Any = None
"""In place of the ids: none of transformers' warpers reads them."""

GREEDY_BELOW = 1e-5
"""Temperatures below it are greedy, as in vLLM: dividing by them overflows."""

_ALLOWED: dict[str, tuple[Callable[[float], bool], str]] = {
    "n": (lambda value: value >= 1, "1 or more"),
    "max_tokens": (lambda value: value >= 1, "1 or more"),
    "min_tokens": (lambda value: value >= 0, "0 or more"),
    "temperature": (lambda value: 0 <= value < math.inf, "0 or more"),
    "top_p": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "top_k": (lambda value: value >= -1, "1 or more, or 0 or -1 for all"),
    "min_p": (lambda value: 0 <= value <= 1, "between 0 and 1"),
    "presence_penalty": (math.isfinite, "a finite number"),
    "frequency_penalty": (math.isfinite, "a finite number"),
    "repetition_penalty": (lambda value: 0 < value < math.inf, "above 0"),
    "top_logprobs": (lambda value: value >= 0, "0 or more"),
}


_RECORDED = (
    "max_tokens", "temperature", "top_p", "top_k", "min_p",
    "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip


class Settings(Struct, frozen=True, kw_only=True):
    """A request's sampling, checked, with every default filled in. `seed` None: a random one."""

    n: int
    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    top_logprobs: int
    seed: int | None
    logit_bias: dict[int, float]
    eos_ids: tuple[int, ...]
    stop_ids: frozenset[int]

    def applied(self) -> dict[str, Any]:
        """What the record says of them: each parameter that has a default."""
        return {name: getattr(self, name) for name in _RECORDED}

    def end(self, token_id: int, generated: int) -> tuple[FinishReason, int | None] | None:
        """Finish and stop reason where `token_id`, the `generated`-th, ends the sequence; None: go on."""
        if generated >= self.min_tokens:
            if token_id in self.eos_ids[:1]:
                return "stop", None
            if token_id in self.stop_ids or token_id in self.eos_ids:
                return "stop", token_id
        return ("length", None) if generated >= self.max_tokens else None


def settle(
    sampling: Sampling, *, room: int, vocab_size: int, eos_ids: tuple[int, ...], defaults: Mapping[str, Any]
) -> Settings:
    """Check a request's sampling and fill in what it leaves open. `room`: how many tokens fit behind the prompt.

    Raises `BadRequest` that names the parameter.
    """
    for name, (fits, allowed) in _ALLOWED.items():
        value = getattr(sampling, name)
        if value is not None and not fits(value):
            raise BadRequest(f"{name} must be {allowed}, not {value}", param=name)
    strangers = [token for token in sampling.logit_bias or () if not 0 <= token < vocab_size]
    if strangers:
        raise BadRequest(
            f"logit_bias names the token id {strangers[0]}; the model has ids 0 to {vocab_size - 1}",
            param="logit_bias",
        )
    max_tokens = min(sampling.max_tokens or room, room)
    min_tokens = sampling.min_tokens or 0
    if min_tokens > max_tokens:
        raise BadRequest(
            f"min_tokens {min_tokens} is more than the {max_tokens} tokens that max_tokens and the context allow",
            param="min_tokens",
        )

    def chosen(name: str, off: Any) -> Any:
        asked = getattr(sampling, name)
        return defaults.get(name, off) if asked is None else asked

    return Settings(
        n=sampling.n,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=chosen("temperature", 1.0),
        top_p=chosen("top_p", 1.0),
        top_k=max(chosen("top_k", 0), 0),
        min_p=chosen("min_p", 0.0),
        presence_penalty=sampling.presence_penalty or 0.0,
        frequency_penalty=sampling.frequency_penalty or 0.0,
        repetition_penalty=chosen("repetition_penalty", 1.0),
        top_logprobs=min(sampling.top_logprobs or 0, vocab_size),
        seed=sampling.seed,
        logit_bias=sampling.logit_bias or {},
        eos_ids=() if sampling.ignore_eos else eos_ids,
        stop_ids=frozenset(sampling.stop_token_ids or ()),
    )


class Sampler:
    """Picks the tokens of one sequence, choice `index` of its request (seeded with seed + index)."""

    def __init__(self, settings: Settings, index: int, prompt_length: int, device: "torch.device") -> None:
        import torch

        self._greedy = settings.temperature < GREEDY_BELOW
        self._shaping = _shaping(settings, prompt_length, device)
        self._warping = _warping(settings)
        self._generator = torch.Generator(device)
        if settings.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed((settings.seed + index) % 2**63)

    def __call__(self, ids: list[int], logits: "torch.Tensor") -> int:
        """The next token after `ids` (prompt and output), given its logits (one row)."""
        import torch

        scores = logits.unsqueeze(0)
        if self._shaping:
            scores = self._shaping(
                cast("torch.LongTensor", torch.tensor([ids], device=logits.device)), scores
            )
        if self._greedy:
            return int(scores.argmax())
        scores = self._warping(_UNREAD, scores)
        return int(torch.multinomial(scores.softmax(-1), 1, generator=self._generator))


def _shaping(settings: Settings, prompt_length: int, device: "torch.device") -> "LogitsProcessorList":
    """What changes the greedy choice too."""
    from transformers.generation import logits_process as processors

    chain = processors.LogitsProcessorList()
    ends = sorted(settings.stop_ids.union(settings.eos_ids))
    if settings.min_tokens and ends:
        chain.append(
            processors.MinNewTokensLengthLogitsProcessor(
                prompt_length, settings.min_tokens, ends, device=str(device)
            )
        )
    if settings.logit_bias:
        biases: list[list[list[int] | float]] = [
            [[token], float(bias)] for token, bias in settings.logit_bias.items()
        ]
        chain.append(processors.SequenceBiasLogitsProcessor(biases))
    if settings.repetition_penalty != 1:
        chain.append(processors.RepetitionPenaltyLogitsProcessor(float(settings.repetition_penalty)))
    if settings.presence_penalty or settings.frequency_penalty:
        chain.append(_count_penalty(settings, prompt_length))
    return chain


def _count_penalty(settings: Settings, prompt_length: int) -> "LogitsProcessor":
    """OpenAI's presence and frequency penalties, which transformers lacks."""
    import torch
    from transformers import LogitsProcessor

    class CountPenalty(LogitsProcessor):
        def __call__(self, input_ids: "torch.Tensor", scores: "torch.Tensor") -> "torch.Tensor":
            output = input_ids[:, prompt_length:]
            counts = torch.zeros_like(scores).scatter_add(
                1, output, torch.ones_like(output, dtype=scores.dtype)
            )
            return scores - settings.frequency_penalty * counts - settings.presence_penalty * (counts > 0)

    return CountPenalty()


def _warping(settings: Settings) -> "LogitsProcessorList":
    """What only a random choice sees."""
    from transformers.generation import logits_process as processors

    chain = processors.LogitsProcessorList()
    if settings.temperature not in {0, 1}:
        chain.append(processors.TemperatureLogitsWarper(float(settings.temperature)))
    if settings.min_p > 0:
        chain.append(processors.MinPLogitsWarper(float(settings.min_p)))
    if settings.top_k > 0:
        chain.append(processors.TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1:
        chain.append(processors.TopPLogitsWarper(float(settings.top_p)))
    return chain
