"""What exceptions mean to clients: WIRE's table, by type and status first and by words last."""

import email.utils
import json
import time
from types import SimpleNamespace
from unittest import mock

import aiohttp
import msgspec
import openai
import pytest
from yarl import URL

from rolltap import BadRequest, ChatBackend, UpstreamError
from rolltap.backend_handle import BackendHandle
from rolltap_plugins.errors import classify, classify_error
from wire_clients import http_library

HTTP = http_library(openai)


def summary(error):
    info = classify(error)
    return info.status, info.type, info.code


def upstream(status, message="no", code=None, **headers):
    return UpstreamError(message, status=status, code=code, headers=headers)


INVALID = "invalid_request_error"


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (400, (400, INVALID, "invalid_request")),
        (401, (401, "authentication_error", "invalid_api_key")),
        (402, (402, "insufficient_quota", "insufficient_quota")),
        (403, (403, "permission_error", "permission_denied")),
        (404, (404, INVALID, "model_not_found")),
        (408, (504, "server_error", "timeout")),
        (409, (409, INVALID, "conflict")),
        (413, (413, INVALID, "request_too_large")),
        (418, (418, INVALID, "invalid_request")),
        (422, (422, INVALID, "unprocessable_entity")),
        (429, (429, "rate_limit_error", "rate_limit_exceeded")),
        (500, (500, "server_error", "api_error")),
        (501, (500, "server_error", "api_error")),
        (502, (502, "server_error", "bad_upstream_response")),
        (503, (503, "server_error", "overloaded")),
        (504, (504, "server_error", "timeout")),
        (529, (503, "server_error", "overloaded")),
        (200, (502, "server_error", "bad_upstream_response")),
        (302, (502, "server_error", "bad_upstream_response")),
        (None, (502, "server_error", "bad_upstream_response")),
    ],
)
def test_upstream_status(status, answer):
    assert summary(upstream(status)) == answer


@pytest.mark.parametrize(
    ("status", "code", "answer"),
    [
        (400, "bad_schema", (400, INVALID, "bad_schema")),
        (400, "context_length_exceeded", (400, INVALID, "context_length_exceeded")),
        (400, "content_filter", (400, INVALID, "content_filter")),
        (429, "insufficient_quota", (402, "insufficient_quota", "insufficient_quota")),
        (429, "whatever", (429, "rate_limit_error", "rate_limit_exceeded")),
        (400, "model_not_found", (404, INVALID, "model_not_found")),
    ],
)
def test_upstreams_own_code_says_more(status, code, answer):
    assert summary(upstream(status, code=code)) == answer


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."),
        (400, "The decoder prompt (length 3000) is longer than the maximum model length of 2048."),
        (400, "prompt is too long: 208310 tokens > 200000 maximum"),
        (400, "the request exceeds the available context size, try increasing it"),
        (400, "Input is too long for requested model."),
        (400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
        (400, "Please reduce the length of the messages: context_length_exceeded"),
        (400, "Please reduce the length of the messages or completion."),
        (413, "Requested input length 9000 exceeds maximum input length 8192 tokens"),
        (422, "Input validation error: `inputs` tokens + `max_new_tokens` exceeds the context window"),
        (500, "Your input exceeds the context window of this model."),
    ],
)
def test_context_overflow_in_upstreams_words(status, text):
    assert summary(upstream(status, text)) == (400, INVALID, "context_length_exceeded")


@pytest.mark.parametrize(
    ("status", "text", "code"),
    [
        (400, "The response was filtered due to the content management policy", "content_filter"),
        (400, "Your credit balance is too low to access the API", "insufficient_quota"),
        (429, "You exceeded your current quota, please check your plan", "insufficient_quota"),
        (429, "Too many tokens per minute", "rate_limit_exceeded"),
        (503, "prompt is too long a wait", "overloaded"),
        (400, "max_tokens must be at least 1", "invalid_request"),
        (400, "tokens: unknown field", "invalid_request"),
        (500, "failed to generate", "api_error"),
    ],
)
def test_words_make_a_status_more_exact_where_they_may(status, text, code):
    assert classify(upstream(status, text)).code == code


REQUEST = aiohttp.RequestInfo(URL("http://up/"), "POST", mock.Mock(), URL("http://up/"))
KEY = mock.Mock(host="up", port=1, ssl=None)


class SdkError(Exception):
    """An exception with whatever attributes some provider's SDK gives it."""

    def __init__(self, message="", **attributes):
        super().__init__(message)
        vars(self).update(attributes)


def named(name, message="", **attributes):
    """An exception of a library that is not imported."""
    return type(name, (SdkError,), {})(message, **attributes)


def response_error(kind, status):
    return kind(REQUEST, (), status=status, message="said so")


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (TimeoutError(), (504, "server_error", "timeout")),
        (aiohttp.ServerTimeoutError("slow"), (504, "server_error", "timeout")),
        (aiohttp.ConnectionTimeoutError("slow"), (504, "server_error", "timeout")),
        (ConnectionRefusedError(111, "refused"), (502, "server_error", "upstream_unreachable")),
        (ConnectionResetError("reset"), (502, "server_error", "upstream_unreachable")),
        (aiohttp.ServerDisconnectedError(), (502, "server_error", "upstream_unreachable")),
        (
            aiohttp.ClientConnectorError(KEY, OSError(111, "no")),
            (502, "server_error", "upstream_unreachable"),
        ),
        (OSError(-2, "Name or service not known"), (502, "server_error", "upstream_unreachable")),
        (aiohttp.ClientPayloadError("cut"), (502, "server_error", "bad_upstream_response")),
        (response_error(aiohttp.ContentTypeError, 200), (502, "server_error", "bad_upstream_response")),
        (response_error(aiohttp.ClientResponseError, 401), (401, "authentication_error", "invalid_api_key")),
        (json.JSONDecodeError("bad", "x", 0), (502, "server_error", "bad_upstream_response")),
        (msgspec.ValidationError("bad"), (502, "server_error", "bad_upstream_response")),
        (FileNotFoundError(2, "gone"), (500, "server_error", "api_error")),
        (SdkError(status_code=403), (403, "permission_error", "permission_denied")),
        (SdkError(response=SimpleNamespace(status_code=409)), (409, INVALID, "conflict")),
        (SdkError(status_code="403"), (500, "server_error", "api_error")),
    ],
)
def test_types(error, answer):
    assert summary(error) == answer


REQUESTED = HTTP.Request("POST", "http://up/")


def sdk_error(kind, status, body=None):
    return kind("said so", response=HTTP.Response(status, request=REQUESTED), body=body)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (openai.APITimeoutError(REQUESTED), (504, "server_error", "timeout")),
        (openai.APIConnectionError(request=REQUESTED), (502, "server_error", "upstream_unreachable")),
        (sdk_error(openai.NotFoundError, 404), (404, INVALID, "model_not_found")),
        (sdk_error(openai.RateLimitError, 429), (429, "rate_limit_error", "rate_limit_exceeded")),
        (
            sdk_error(openai.RateLimitError, 429, {"code": "insufficient_quota"}),
            (402, "insufficient_quota", "insufficient_quota"),
        ),
        (sdk_error(openai.InternalServerError, 503), (503, "server_error", "overloaded")),
        (HTTP.ReadTimeout("slow"), (504, "server_error", "timeout")),
        (HTTP.ConnectError("no"), (502, "server_error", "upstream_unreachable")),
    ],
)
def test_exceptions_of_real_sdks(error, answer):
    assert summary(error) == answer


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (named("RateLimitError", "x", status_code=429), (429, "rate_limit_error", "rate_limit_exceeded")),
        (named("AuthenticationError"), (401, "authentication_error", "invalid_api_key")),
        (named("MissingApiKeyError"), (401, "authentication_error", "invalid_api_key")),
        (named("InvalidRequestError", status_code=400), (400, INVALID, "invalid_request")),
        (named("InvalidRequestError", "maximum context length"), (400, INVALID, "context_length_exceeded")),
        (named("ModelNotFoundError", status_code=400), (404, INVALID, "model_not_found")),
        (named("ContextLengthExceededError", status_code=400), (400, INVALID, "context_length_exceeded")),
        (named("ContentFilterError", status_code=400), (400, INVALID, "content_filter")),
        (named("InsufficientFundsError", status_code=402), (402, "insufficient_quota", "insufficient_quota")),
        (named("GatewayTimeoutError", status_code=504), (504, "server_error", "timeout")),
        (named("UpstreamProviderError", status_code=502), (502, "server_error", "bad_upstream_response")),
        (named("ProviderError", status_code=200), (502, "server_error", "bad_upstream_response")),
        (named("ProviderError", status_code=None), (500, "server_error", "api_error")),
        (
            named("ProviderError", "x", status_code=None, original_exception=HTTP.ReadTimeout("slow")),
            (504, "server_error", "timeout"),
        ),
        (named("ProviderError", "x", error_type="overloaded_error"), (503, "server_error", "overloaded")),
        (named("ProviderError", "x", error_type="strange"), (500, "server_error", "api_error")),
        (named("APIError", "x", type="rate_limit_error"), (429, "rate_limit_error", "rate_limit_exceeded")),
        (
            named("APIError", "prompt is too long", type="invalid_request_error"),
            (400, INVALID, "context_length_exceeded"),
        ),
        (
            named("ProviderError", "rate limit", original_exception=ValueError("?")),
            (429, "rate_limit_exceeded", "rate_limit_exceeded"),
        ),
    ],
)
def test_unified_exceptions_of_anyllm(error, answer):
    assert summary(error) == answer


def test_unsupported_parameter_is_named():
    info = classify(named("UnsupportedParameterError", "'top_k' is not supported", parameter_name="top_k"))
    assert (info.status, info.param) == (400, "top_k")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("authentication api key missing", (401, "authentication_error", "invalid_api_key")),
        ("authentication api_key missing", (401, "authentication_error", "invalid_api_key")),
        ("Invalid API key", (401, "authentication_error", "invalid_api_key")),
        ("rate limit exceeded", (429, "rate_limit_exceeded", "rate_limit_exceeded")),
        ("Rate_limit hit", (429, "rate_limit_exceeded", "rate_limit_exceeded")),
        ("model not found", (404, "model_not_found", "model_not_found")),
        ("The model `x` does not exist", (404, "model_not_found", "model_not_found")),
        ("other error", (500, "server_error", "api_error")),
        ("stream broke", (500, "server_error", "api_error")),
        ("could not generate: limits of memory", (500, "server_error", "api_error")),
        ("failed to generate limit", (500, "server_error", "api_error")),
        ("the separate limiter", (500, "server_error", "api_error")),
        ("remodel not founded", (500, "server_error", "api_error")),
        ("file not found", (500, "server_error", "api_error")),
        ("", (500, "server_error", "api_error")),
    ],
)
def test_words_of_an_exception_of_no_known_type(text, answer):
    assert summary(RuntimeError(text)) == answer


def test_message_is_the_exceptions_own():
    assert classify(RuntimeError("stream broke")).message == "stream broke"


class Silent(ChatBackend):
    async def chat(self, request):
        raise TimeoutError
        yield


def test_exception_without_words_is_described_with_its_backend():
    handle = BackendHandle(Silent(), name="gpu-1", kind="vllm", model="tiny").view
    assert classify_error(TimeoutError(), handle).message == "The backend gpu-1 did not answer in time."
    assert classify_error(TimeoutError(), None).message == "The backend did not answer in time."


def test_own_errors_say_what_they_mean():
    error = BadRequest("n is wrong", param="n")
    assert classify(error) is error.info


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (upstream(429, **{"Retry-After": "7"}), 7.0),
        (upstream(429, **{"retry-after": "0.5"}), 0.5),
        (upstream(429, **{"retry-after-ms": "1500", "retry-after": "9"}), 1.5),
        (upstream(503, **{"retry-after": "-3"}), 0.0),
        (upstream(429, **{"retry-after": "soon"}), None),
        (upstream(429, **{"retry-after": "nan"}), None),
        (upstream(429), None),
        (named("RateLimitError", retry_after="12"), 12.0),
        (sdk_error(openai.RateLimitError, 429), None),
        (SdkError(response=HTTP.Response(429, headers={"retry-after": "3"})), 3.0),
    ],
)
def test_retry_after(error, seconds):
    assert classify(error).retry_after == seconds


def test_retry_after_as_a_date():
    date = email.utils.formatdate(time.time() + 60, usegmt=True)
    assert classify(upstream(429, **{"retry-after": date})).retry_after == pytest.approx(60, abs=2)


def test_no_credit_is_not_worth_a_retry():
    assert classify(upstream(402)).should_retry is False
    assert classify(upstream(429)).should_retry is None
