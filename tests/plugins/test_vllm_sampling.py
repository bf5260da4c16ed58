"""What the record says of a vLLM request's sampling."""

import pytest

from rolltap import Sampling, TokenRequest
from rolltap_plugins.vllm.parameters import applied, request_body


@pytest.mark.parametrize("endpoint", ["generate", "completions"])
def test_both_endpoints_apply_what_was_asked_and_the_same_defaults(endpoint):
    request = TokenRequest(prompt_ids=[1, 2], sampling=Sampling(top_p=0.5, max_tokens=500))
    body = request_body(endpoint, "m", request, 100)
    assert applied(endpoint, body) == {
        "max_tokens": 98,
        "temperature": 1.0,
        "top_p": 0.5,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
    }
