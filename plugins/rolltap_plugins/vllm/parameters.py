"""How rolltap's sampling parameters are said to each of vLLM's two endpoints.

`/v1/completions` takes them at the top of its body, `/inference/v1/generate` in `sampling_params`. Names and meanings
are those of vLLM 0.32; the server answers a wrong value with a 400 of its own. What would change the prompt or whose
result a token stream cannot carry (`echo`, `suffix`, `prompt_logprobs`, beam search) is not among them.
"""

from typing import Any, Literal

import orjson

from rolltap import SAMPLING_PARAMETERS, BadRequest, Sampling, TokenRequest
from rolltap_plugins.upstream.backend import engine_request_id, joined_salt

Endpoint = Literal["generate", "completions"]

_SAMPLING_FIELDS = frozenset(
    {
        "allowed_token_ids",
        "bad_words",
        "include_stop_str_in_output",
        "repetition_detection",
        "routed_experts_prompt_start",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stream_interval",
        "structured_outputs",
        "thinking_token_budget",
        "watermarking",
    }
)
"""Further sampling parameters that both endpoints have, under the same names."""

_REQUEST_FIELDS = frozenset({"cache_salt", "ec_transfer_params", "kv_transfer_params", "priority"})
"""What both endpoints take beside the sampling parameters."""

_GENERATE_SAMPLING = frozenset({"detokenize", "skip_reading_prefix_cache", "trace_decode_token_ids"})
_GENERATE_REQUEST = frozenset({"reasoning_ended", "reasoning_parser_kwargs"})
_GENERATE_ONLY = _GENERATE_SAMPLING | _GENERATE_REQUEST

# `logprob_token_ids` works at both, but the token endpoint cuts its answer one short.
COMPLETIONS_ONLY = frozenset(
    {"length_penalty", "logprob_token_ids", "truncate_prompt_tokens", "truncation_side"}
)
"""Parameters that only `/v1/completions` has."""

_OTHER = frozenset({"vllm_xargs"})

PARAMETERS = (
    SAMPLING_PARAMETERS | _SAMPLING_FIELDS | _REQUEST_FIELDS | _GENERATE_ONLY | COMPLETIONS_ONLY | _OTHER
)
"""Every parameter that a vLLM backend takes."""

_NEUTRAL = {
    "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
    "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
}  # fmt: skip
"""What a missing parameter means to the token endpoint. `/v1/completions` would take the model's generation config
instead, which it does not tell: so it is told these, and a record without a parameter has one meaning."""

_SPECIAL = frozenset({"extra", "max_tokens", "n", "response_format", "top_logprobs"})
_PLAIN = tuple(name for name in Sampling.__struct_fields__ if name not in _SPECIAL)
"""Parameters of `Sampling` that vLLM calls by the same name and takes as they are."""


def request_body(
    endpoint: Endpoint, model: str, request: TokenRequest, max_model_len: int | None
) -> dict[str, Any]:
    """The JSON body that asks `endpoint` for ids and logprobs, as a stream where somebody reads one.

    Raises `BadRequest` for a parameter that the endpoint cannot honour.
    """
    sampling, prompt_ids = request.sampling, list(request.prompt_ids)
    other = _GENERATE_ONLY if endpoint == "completions" else COMPLETIONS_ONLY
    for name in sampling.extra:
        if name in other or name not in PARAMETERS:
            raise BadRequest(f"The vLLM server's {endpoint} endpoint has no parameter {name!r}", param=name)
    body: dict[str, Any] = {"model": model, "stream": request.stream, "return_token_ids": True}
    if request.stream:
        body["stream_options"] = {"include_usage": True}
    max_tokens = _max_tokens(endpoint, len(prompt_ids), sampling.max_tokens, max_model_len)
    form = _generate if endpoint == "generate" else _completions
    return body | form(prompt_ids, sampling, max_tokens) | _scheduling(request)


def _scheduling(request: TokenRequest) -> dict[str, Any]:
    """What says nothing about the tokens. A priority is refused by servers that do not schedule by it."""
    body: dict[str, Any] = {"request_id": engine_request_id(request)}
    if request.priority:
        body["priority"] = request.priority
    if salt := joined_salt(request, request.sampling.extra):
        body["cache_salt"] = salt
    return body


def applied(endpoint: Endpoint, body: dict[str, Any]) -> dict[str, Any]:
    """The sampling that a request's body stands for, with what it leaves to the server filled in."""
    sent = body["sampling_params"] if endpoint == "generate" else body
    return _NEUTRAL | {name: sent[name] for name in (*_NEUTRAL, "max_tokens") if sent.get(name) is not None}


def _generate(prompt_ids: list[int], sampling: Sampling, max_tokens: int | None) -> dict[str, Any]:
    extra = sampling.extra
    params = _plain(sampling) | {
        name: extra[name] for name in extra if name in _SAMPLING_FIELDS | _GENERATE_SAMPLING
    }
    if max_tokens is not None:
        params["max_tokens"] = max_tokens
    if sampling.response_format is not None:
        structured = _structured_outputs(sampling.response_format)
        if structured:
            params["structured_outputs"] = {**(params.get("structured_outputs") or {}), **structured}
    if "vllm_xargs" in extra:
        params["extra_args"] = extra["vllm_xargs"]
    # The engine's text is needed only where it looks for stop strings in it.
    params.setdefault("detokenize", bool(sampling.stop))
    request = {name: extra[name] for name in extra if name in _REQUEST_FIELDS | _GENERATE_REQUEST}
    return {"token_ids": prompt_ids, "sampling_params": params, **request}


def _completions(prompt_ids: list[int], sampling: Sampling, max_tokens: int | None) -> dict[str, Any]:
    body = {"prompt": prompt_ids, **_NEUTRAL, **_plain(sampling), **sampling.extra, "max_tokens": max_tokens}
    # Tokens are then named by their ids in the logprobs: the alternatives' ids come no other way, and servers that
    # lack `return_token_ids` say the sampled ids there.
    body["return_tokens_as_token_ids"] = True
    if sampling.response_format is not None:
        body["response_format"] = sampling.response_format
    return body


def _plain(sampling: Sampling) -> dict[str, Any]:
    """The parameters that both endpoints take under the same names and in the same form."""
    params = {name: value for name in _PLAIN if (value := getattr(sampling, name)) is not None}
    return params | {"n": sampling.n, "logprobs": sampling.top_logprobs or 0}


def _max_tokens(endpoint: Endpoint, prompt: int, asked: int | None, max_model_len: int | None) -> int | None:
    """How many tokens to ask for, so that both endpoints mean the same by a missing or a too large `max_tokens`.

    Left out it would mean 16 to `/v1/completions` and to older token endpoints; too large a one is an error to
    some versions and cut by others.
    """
    if max_model_len is not None:
        room = max(max_model_len - prompt, 1)  # a prompt that leaves none is the server's to refuse
        return room if asked is None else min(asked, room)
    if asked is None and endpoint == "completions":
        raise BadRequest(
            "The vLLM server does not say how long a sequence may be: give max_tokens", param="max_tokens"
        )
    return asked


def _structured_outputs(response_format: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's `response_format` as vLLM's `structured_outputs`, the way its own completions endpoint reads it."""
    kind = response_format.get("type")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_object": True}
    if kind == "json_schema":
        schema = (response_format.get("json_schema") or {}).get("schema")
        if schema is None:
            raise BadRequest(
                "response_format of type json_schema needs json_schema.schema", param="response_format"
            )
        return {"json": schema}
    if kind == "structural_tag":
        return {"structural_tag": orjson.dumps(response_format).decode()}
    raise BadRequest(
        f"response_format.type is {kind!r}; vLLM takes text, json_object, json_schema and structural_tag",
        param="response_format",
    )
