"""How rolltap's sampling parameters are said to SGLang's `/generate`. Names and meanings are those of SGLang 0.5.23."""

from typing import Any

import orjson

from rolltap import SAMPLING_PARAMETERS, BadRequest, Sampling, TokenRequest

_SAMPLING_FIELDS = frozenset(
    {
        "custom_params",
        "ebnf",
        "json_schema",
        "no_stop_trim",
        "regex",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop_regex",
        "structural_tag",
    }
)
"""Further entries of `sampling_params`."""

_REQUEST_FIELDS = frozenset(
    {
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "cache_salt",
        "custom_labels",
        "custom_logit_processor",
        "extra_key",
        "lora_path",
        "max_thinking_tokens",
        "priority",
        "require_reasoning",
        "return_routed_experts",
        "return_sampling_mask",
        "routed_dp_rank",
        "routed_experts_start_len",
        "routing_key",
        "session_id",
    }
)
"""What stands beside the sampling parameters."""

PARAMETERS = SAMPLING_PARAMETERS | _SAMPLING_FIELDS | _REQUEST_FIELDS
"""Every parameter that an SGLang backend takes."""

_NEUTRAL = {
    "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
    "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
}  # fmt: skip
"""What a missing parameter means. A server may prefer others, which it would take without telling."""

_RENAMED = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}
_SPECIAL = frozenset({"extra", "logit_bias", "max_tokens", "response_format", "top_logprobs"})
_PLAIN = tuple(name for name in Sampling.__struct_fields__ if name not in _SPECIAL)

_GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")


def request_body(
    request: TokenRequest, max_model_len: int | None, *, rid: str, verify: bool
) -> dict[str, Any]:
    """The JSON body of a request. Raises `BadRequest` for what SGLang can't do.

    :param rid: the engine's name for the request; of several choices each gets one of the engine's own.
    :param verify: have the engine tell the prompt's ids with their logprobs.
    """
    sampling, extra = request.sampling, request.sampling.extra
    for name in extra:
        if name not in PARAMETERS:
            raise BadRequest(f"SGLang has no parameter {name!r}", param=name)
    body: dict[str, Any] = {
        "input_ids": list(request.prompt_ids),
        "sampling_params": _sampling_params(sampling, len(request.prompt_ids), max_model_len),
        "stream": request.stream,
        "return_logprob": True,
        "logprob_start_len": 0 if verify else -1,
        "top_logprobs_num": sampling.top_logprobs or 0,
        # A stream would repeat them in each of its events.
        "return_prompt_token_ids": not request.stream,
    }
    body |= {name: extra[name] for name in extra if name in _REQUEST_FIELDS}
    if sampling.n == 1:
        body["rid"] = rid
    if request.priority:
        body["priority"] = request.priority
    if request.cache_salt:  # older servers would not know it by the name cache_salt
        body["extra_key"] = ":".join(filter(None, (extra.get("extra_key"), request.cache_salt)))
    return body


def applied(body: dict[str, Any]) -> dict[str, Any]:
    """The sampling that a request's body stands for, by rolltap's names."""
    params = body["sampling_params"]
    return {name: params[name] for name in _NEUTRAL} | {"max_tokens": params["max_new_tokens"]}


def _sampling_params(sampling: Sampling, prompt: int, max_model_len: int | None) -> dict[str, Any]:
    given = {
        _RENAMED.get(name, name): value for name in _PLAIN if (value := getattr(sampling, name)) is not None
    }
    params = _NEUTRAL | given | {"max_new_tokens": _max_tokens(prompt, sampling.max_tokens, max_model_len)}
    if params["top_k"] == 0:
        params["top_k"] = -1  # vLLM's word for all tokens, and SGLang's
    if sampling.logit_bias:
        params["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    params |= {name: value for name, value in sampling.extra.items() if name in _SAMPLING_FIELDS}
    params |= _grammar(sampling.response_format)
    if len(grammars := [name for name in _GRAMMARS if params.get(name)]) > 1:
        raise BadRequest(f"SGLang takes one of {' and '.join(grammars)}, not both", param=grammars[-1])
    return params


def _max_tokens(prompt: int, asked: int | None, max_model_len: int | None) -> int:
    """How many tokens to ask for. Left out it would mean 128; more than there is room for is an error."""
    if max_model_len is not None:
        room = max(max_model_len - prompt, 1)  # a prompt that leaves none is the server's to refuse
        return room if asked is None else min(asked, room)
    if asked is None:
        raise BadRequest(
            "The SGLang server does not say how long a sequence may be: give max_tokens", param="max_tokens"
        )
    return asked


def _grammar(response_format: Any) -> dict[str, str]:
    """OpenAI's `response_format` as one of SGLang's grammars, the way its own chat endpoint reads it."""
    kind = response_format.get("type") if response_format else "text"
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_schema": '{"type": "object"}'}
    if kind == "json_schema":
        schema = (response_format.get("json_schema") or {}).get("schema")
        if schema is None:
            raise BadRequest(
                "response_format of type json_schema needs json_schema.schema", param="response_format"
            )
        return {"json_schema": orjson.dumps(schema).decode()}
    if kind == "structural_tag":
        return {"structural_tag": orjson.dumps(response_format).decode()}
    raise BadRequest(
        f"response_format.type is {kind!r}; SGLang takes text, json_object, json_schema and structural_tag",
        param="response_format",
    )
