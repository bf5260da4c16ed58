"""The sampling parameters of OpenAI and vLLM, which every dialect here takes beside its own."""

from collections.abc import Iterable
from typing import Annotated, Any

from msgspec import Meta, Struct

from rolltap import Sampling
from rolltap_plugins.wire import refused

Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
AtLeastOne = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
# More choices than any trainer's group; a mistyped number must not make a backend reserve room for millions.
Choices = Annotated[int, Meta(ge=1, le=4096)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

CLIENT_FIELDS = frozenset({"metadata", "safety_identifier", "store", "user"})
"""Fields of OpenAI's that say who asks and what to note of it."""

UPSTREAM_FIELDS = frozenset(
    {
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "service_tier",
    }
)
"""Fields of OpenAI's that say how a provider should cache, bill or speed up the answer."""


def told(body: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Those of the fields that the client has sent."""
    return {name: body[name] for name in names if body.get(name) is not None}


class SamplingFields(Struct, kw_only=True):
    """The fields, as bodies carry them."""

    n: Choices | None = None
    max_tokens: AtLeastOne | None = None
    min_tokens: NotNegative | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Probability | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[NotNegative] | None = None
    ignore_eos: bool | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None


class StreamOptions(Struct, forbid_unknown_fields=True):
    """How a reply is streamed. `include_obfuscation` asks for padding against eavesdroppers, which TLS is for."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """Whether each chunk says how many tokens there have been so far, as vLLM's do; with `include_usage`."""
    include_obfuscation: bool | None = None


def sampling(
    fields: SamplingFields, *, max_tokens: int | None, top_logprobs: int | None, extra: dict[str, Any]
) -> Sampling:
    """The neutral parameters. Raises `BadRequest` for a stop string, bias or format that can't be meant."""
    return Sampling(
        n=fields.n or 1,
        max_tokens=max_tokens,
        min_tokens=fields.min_tokens,
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=fields.top_k,
        min_p=fields.min_p,
        seed=fields.seed,
        stop=_stop(fields.stop),
        stop_token_ids=tuple(fields.stop_token_ids) if fields.stop_token_ids else None,
        ignore_eos=fields.ignore_eos,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        repetition_penalty=fields.repetition_penalty,
        logit_bias=_logit_bias(fields.logit_bias),
        top_logprobs=top_logprobs,
        response_format=_response_format(fields.response_format),
        extra=extra,
    )


def _stop(value: str | list[str] | None) -> tuple[str, ...] | None:
    strings = [value] if isinstance(value, str) else value
    if strings and "" in strings:
        raise refused("stop", "has an empty string, which every text ends with.")
    return tuple(strings) if strings else None


def _logit_bias(value: dict[str, float] | None) -> dict[int, float] | None:
    if not value:
        return None
    for key in value:
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise refused("logit_bias", f"has the key {key!r}; its keys are token ids.")
    return {int(key): bias for key, bias in value.items()}


def _response_format(value: dict[str, Any] | None) -> dict[str, Any] | None:
    if value is None:
        return None
    kind = value.get("type")
    if not isinstance(kind, str):
        raise refused("response_format.type", "is missing; use text, json_object or json_schema.")
    schema = value.get("json_schema")
    if kind == "json_schema" and not (isinstance(schema, dict) and isinstance(schema.get("schema"), dict)):
        raise refused("response_format.json_schema", "needs an object `schema`.")
    return None if kind == "text" else value
