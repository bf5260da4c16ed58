"""What the vLLM backend sends: every parameter in the form that each endpoint takes, and the options it is made with."""

import json

import pytest

from rolltap import SAMPLING_PARAMETERS, BadRequest, ConfigError, Sampling, TokenRequest
from rolltap_plugins.vllm import VLLMBackend, create_backend
from rolltap_plugins.vllm.options import Options
from rolltap_plugins.vllm.parameters import COMPLETIONS_ONLY, PARAMETERS, request_body

PROMPT = [1, 4, 1, 5]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def body(endpoint, *, max_model_len=100, **sampling):
    request = TokenRequest(prompt_ids=PROMPT, sampling=Sampling(**sampling))
    return request_body(endpoint, "served", request, max_model_len)


def sent(endpoint, **sampling):
    """The sampling parameters of a body, wherever the endpoint has them."""
    whole = body(endpoint, **sampling)
    return whole["sampling_params"] if endpoint == "generate" else whole


ENDPOINTS = pytest.mark.parametrize("endpoint", ["generate", "completions"])

SAME = {
    "min_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3, "stop": ("END",),
    "stop_token_ids": (2,), "ignore_eos": True, "presence_penalty": 0.1, "frequency_penalty": 0.2,
    "repetition_penalty": 1.1, "logit_bias": {7: 1.5},
}  # fmt: skip


@ENDPOINTS
@pytest.mark.parametrize("name", SAME)
def test_named_parameters_go_as_they_are(endpoint, name):
    assert sent(endpoint, **{name: SAME[name]})[name] == SAME[name]
    assert sent("generate").get(name) is None


def test_what_is_missing_means_the_same_to_both_endpoints():
    """The token endpoint's own defaults; the other would take the model's generation config."""
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    neutral |= {"presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert neutral.items() <= sent("completions").items()
    assert sent("generate").keys() == {"n", "logprobs", "max_tokens", "detokenize"}


def test_every_named_parameter_is_covered():
    assert set(SAME) | {"n", "max_tokens", "top_logprobs", "response_format"} == SAMPLING_PARAMETERS


@ENDPOINTS
def test_logprobs_are_always_asked_for(endpoint):
    assert sent(endpoint)["logprobs"] == 0
    assert sent(endpoint, top_logprobs=5)["logprobs"] == 5
    assert sent(endpoint, n=4)["n"] == 4


@ENDPOINTS
@pytest.mark.parametrize(
    ("asked", "max_model_len", "expected"),
    [(None, 100, 96), (10, 100, 10), (500, 100, 96), (0, 100, 0), (None, 3, 1), (10, None, 10)],
)
def test_max_tokens_fills_the_context_and_is_cut_to_it(endpoint, asked, max_model_len, expected):
    whole = body(endpoint, max_tokens=asked, max_model_len=max_model_len)
    assert (whole.get("sampling_params") or whole)["max_tokens"] == expected


def test_without_a_known_context_completions_needs_max_tokens():
    assert "max_tokens" not in body("generate", max_model_len=None)["sampling_params"]
    with pytest.raises(BadRequest, match="give max_tokens"):
        body("completions", max_model_len=None)


def test_extra_parameters_go_where_each_endpoint_has_them():
    extra = {name: f"<{name}>" for name in PARAMETERS - SAMPLING_PARAMETERS}
    completions = {name: extra[name] for name in extra if name not in GENERATE_ONLY}
    assert completions.items() <= body("completions", extra=completions).items()
    generate = body("generate", extra={name: extra[name] for name in extra if name not in COMPLETIONS_ONLY})
    beside = {"cache_salt", "priority", "kv_transfer_params", "ec_transfer_params"}
    beside |= {"reasoning_ended", "reasoning_parser_kwargs"}
    for name in beside:
        assert generate[name] == extra[name]
    assert generate["sampling_params"]["extra_args"] == extra["vllm_xargs"]
    for name in set(extra) - beside - COMPLETIONS_ONLY - {"vllm_xargs"}:
        assert generate["sampling_params"][name] == extra[name]


GENERATE_ONLY = {
    "detokenize", "skip_reading_prefix_cache", "trace_decode_token_ids", "reasoning_ended", "reasoning_parser_kwargs",
}  # fmt: skip


@ENDPOINTS
@pytest.mark.parametrize(
    "name", ["echo", "prompt", "token_ids", "stream", "logprobs", "prompt_logprobs", "bogus"]
)
def test_what_would_break_the_record_or_is_unknown_is_refused(endpoint, name):
    assert name not in PARAMETERS
    with pytest.raises(BadRequest) as caught:
        body(endpoint, extra={name: 1})
    assert caught.value.info.param == name


@pytest.mark.parametrize(
    ("response_format", "structured"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"json_object": True}),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, {"json": SCHEMA}),
    ],
)
def test_response_format_in_the_shape_of_each_endpoint(response_format, structured):
    assert sent("completions", response_format=response_format)["response_format"] == response_format
    assert sent("generate", response_format=response_format).get("structured_outputs") == structured


def test_structural_tags_and_further_options_of_structured_outputs():
    tag = {"type": "structural_tag", "format": {"type": "any_text"}}
    structured = sent("generate", response_format=tag)["structured_outputs"]
    assert json.loads(structured["structural_tag"]) == tag
    both = sent(
        "generate",
        response_format={"type": "json_object"},
        extra={"structured_outputs": {"disable_any_whitespace": True}},
    )
    assert both["structured_outputs"] == {"disable_any_whitespace": True, "json_object": True}


@pytest.mark.parametrize("wrong", [{"type": "yaml"}, {"type": "json_schema"}, {}])
def test_a_wrong_response_format_is_refused(wrong):
    with pytest.raises(BadRequest) as caught:
        body("generate", response_format=wrong)
    assert caught.value.info.param == "response_format"


def test_the_engine_makes_text_only_to_find_stop_strings():
    assert sent("generate")["detokenize"] is False
    assert sent("generate", stop=["END"])["detokenize"] is True
    assert sent("generate", extra={"detokenize": True})["detokenize"] is True


# ---- options


def read(environ=None, **table):
    return Options.read(table, "m", environ or {})


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_the_address_may_end_like_an_openai_base_url(url):
    assert read(url=url).url == "http://h:1"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "give either 'url'"),
        ({"url": "http://h", "launch": "m"}, "give either 'url'"),
        ({"ulr": "http://h"}, "unknown option 'ulr'; did you mean \"url\""),
        ({"url": "http://h", "zzzzzz": 1}, "unknown option 'zzzzzz'; known are: url, api_key_env"),
        ({"url": "http://me:secret@h"}, "'url' has a user or a password in it.* leave it http://h and"),
        ({"url": "127.0.0.1:8000"}, "'url' is '127.0.0.1:8000'; expected an address such as"),
        (
            {"url": "http://h", "endpoint": "chat"},
            "option 'endpoint' is 'chat': allowed are 'auto', 'generate', 'completions'",
        ),
        ({"url": "http://h", "timeout_s": 0}, "option 'timeout_s' is 0: Expected `float` > 0.0"),
        ({"url": "http://h", "timeout_s": "long"}, "'timeout_s' is 'long': Expected `float`, got `str`"),
        ({"launch": "m", "launch_args": [1]}, r"'launch_args' is \[1\]: Expected `str`, got `int`"),
        ({"url": "http://h", "api_key_env": "NOT_SET"}, "'api_key_env' names 'NOT_SET'"),
        (
            {"url": "http://h", "launch_args": ["--x"]},
            "'launch_args' has a meaning only together with 'launch'",
        ),
        ({"launch": "m", "launch_args": ["--port=1"]}, "'launch_args' has '--port=1', but rolltap chooses"),
    ],
)
def test_wrong_options_say_what_and_how(table, said):
    with pytest.raises(ConfigError, match=said) as caught:
        create_backend("vllm", table, "m")
    assert "model 'm', backend of kind 'vllm'" in str(caught.value)


def test_launch_args_are_read_in_both_forms():
    options = read(launch="m", launch_args=["--tokenizer", "t", "--logprobs-mode=raw_logits", "--last"])
    assert options.launch_arg("--tokenizer") == "t"
    assert options.launch_arg("--logprobs-mode") == "raw_logits"
    assert options.launch_arg("--last") is None
    assert options.launch_arg("--absent") is None


def test_a_launched_models_tokenizer_is_its_own():
    assert VLLMBackend(read(launch="some/model"), "m").tokenizer == "some/model"
    assert VLLMBackend(read(launch="some/model", launch_args=["--tokenizer=t"]), "m").tokenizer == "t"
    assert VLLMBackend(read(url="http://h"), "m").tokenizer == ""
