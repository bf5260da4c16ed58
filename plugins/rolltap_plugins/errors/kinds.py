"""The kinds of failure: the one table of what a client is told, and the words of upstreams that lead to a kind."""

import re

import msgspec


class Kind(msgspec.Struct, frozen=True):
    """A row of the table: the status, OpenAI's type and code, and whether a retry is worth it where that is known.

    `sentence` is said where the exception itself says nothing; the backend's name goes in.
    """

    status: int
    type: str
    code: str
    sentence: str
    should_retry: bool | None = None


BAD_REQUEST = Kind(400, "invalid_request_error", "invalid_request", "{} refused the request.")
CONTEXT = Kind(400, "invalid_request_error", "context_length_exceeded", "The prompt is too long for {}.")
FILTERED = Kind(
    400, "invalid_request_error", "content_filter", "The content filter of {} refused the request."
)
AUTHENTICATION = Kind(401, "authentication_error", "invalid_api_key", "{} refused the API key.")
NO_CREDIT = Kind(
    402, "insufficient_quota", "insufficient_quota", "The account at {} has no credit left.", False
)
PERMISSION = Kind(403, "permission_error", "permission_denied", "{} does not permit this.")
NO_MODEL = Kind(404, "invalid_request_error", "model_not_found", "{} does not have this model.")
TIMEOUT = Kind(504, "server_error", "timeout", "{} did not answer in time.")
CONFLICT = Kind(409, "invalid_request_error", "conflict", "{} reports a conflict.")
TOO_LARGE = Kind(413, "invalid_request_error", "request_too_large", "The request is too large for {}.")
UNPROCESSABLE = Kind(422, "invalid_request_error", "unprocessable_entity", "{} can't process the request.")
RATE_LIMIT = Kind(429, "rate_limit_error", "rate_limit_exceeded", "The rate limit of {} is reached.")
SERVER = Kind(500, "server_error", "api_error", "{} failed.")
BAD_RESPONSE = Kind(502, "server_error", "bad_upstream_response", "{} gave an answer that can't be read.")
UNREACHABLE = Kind(502, "server_error", "upstream_unreachable", "{} can't be reached.")
OVERLOADED = Kind(503, "server_error", "overloaded", "{} is overloaded.")

BY_STATUS = {
    400: BAD_REQUEST,
    401: AUTHENTICATION,
    402: NO_CREDIT,
    403: PERMISSION,
    404: NO_MODEL,
    408: TIMEOUT,
    409: CONFLICT,
    413: TOO_LARGE,
    422: UNPROCESSABLE,
    429: RATE_LIMIT,
    500: SERVER,
    502: BAD_RESPONSE,
    503: OVERLOADED,
    504: TIMEOUT,
    529: OVERLOADED,
}

BY_CODE = {
    "context_length_exceeded": CONTEXT,
    "content_filter": FILTERED,
    "content_policy_violation": FILTERED,
    "insufficient_quota": NO_CREDIT,
    "billing_hard_limit_reached": NO_CREDIT,
    "model_not_found": NO_MODEL,
}
"""The upstream's own words that say more than its status does."""

BY_TYPE_WORD = {
    "authentication_error": AUTHENTICATION,
    "billing_error": NO_CREDIT,
    "insufficient_quota": NO_CREDIT,
    "invalid_request_error": BAD_REQUEST,
    "not_found_error": NO_MODEL,
    "overloaded_error": OVERLOADED,
    "permission_error": PERMISSION,
    "rate_limit_error": RATE_LIMIT,
    "request_too_large": TOO_LARGE,
    "timeout_error": TIMEOUT,
}
"""What an upstream calls an error of which it gives no status, as inside a stream."""

BY_NAME = {
    # any-llm's unified exceptions
    "ContextLengthExceededError": CONTEXT,
    "ContentFilterError": FILTERED,
    "InsufficientFundsError": NO_CREDIT,
    "MissingApiKeyError": AUTHENTICATION,
    "ModelNotFoundError": NO_MODEL,
    "GatewayTimeoutError": TIMEOUT,
    "InvalidRequestError": BAD_REQUEST,
    "UnsupportedParameterError": BAD_REQUEST,
    # the names that provider SDKs share
    "AuthenticationError": AUTHENTICATION,
    "BadRequestError": BAD_REQUEST,
    "ConflictError": CONFLICT,
    "NotFoundError": NO_MODEL,
    "OverloadedError": OVERLOADED,
    "PermissionDeniedError": PERMISSION,
    "RateLimitError": RATE_LIMIT,
    "UnprocessableEntityError": UNPROCESSABLE,
    "APITimeoutError": TIMEOUT,
    "APIConnectionError": UNREACHABLE,
    # httpx, below many of them
    "TimeoutException": TIMEOUT,
    "ConnectError": UNREACHABLE,
    "ReadError": UNREACHABLE,
    "RemoteProtocolError": UNREACHABLE,
}
"""Exceptions of libraries that are not imported here, by the name of their class or of one it derives from."""

_CONTEXT = re.compile(
    r"\b(context[ _](length|window|size)(_exceeded)?|maximum context|max_model_len|maximum model length"
    r"|(prompt|input) (is )?too long|too many (input |prompt )?tokens"
    r"|reduce the length of (the|your) (messages|prompt|input)"
    r"|(prompt|input|tokens?)\b.{0,60}\b(exceeds?|longer than|greater than)\b.{0,40}\b(context|tokens?|length))\b",
    re.IGNORECASE | re.DOTALL,
)
_FILTER = re.compile(r"\bcontent[ _](filter|management policy|policy)", re.IGNORECASE)
_CREDIT = re.compile(
    r"\b(insufficient[ _](quota|funds|credits?|balance)|(no|out of) credits?|credit balance|exceeded your current quota)\b",
    re.IGNORECASE,
)
_AUTHENTICATION = re.compile(r"\b(authentication|unauthori[sz]ed|api[ _-]?keys?)\b", re.IGNORECASE)
_RATE_LIMIT = re.compile(r"\b(rate[ _-]?limit(s|ed|ing)?|too many requests)\b", re.IGNORECASE)
_NO_MODEL = re.compile(
    r"\bmodel\b.*\b(not found|not exist)\b|\b(not found|unknown|no such)\b.*\bmodel\b",
    re.IGNORECASE | re.DOTALL,
)


def by_words(text: str, kind: Kind) -> Kind:
    """A kind made more exact by the text, where providers have but one status for several faults."""
    if kind in {BAD_REQUEST, TOO_LARGE, UNPROCESSABLE, SERVER} and _CONTEXT.search(text):
        return CONTEXT
    if kind is BAD_REQUEST and _FILTER.search(text):
        return FILTERED
    if kind in {BAD_REQUEST, PERMISSION, RATE_LIMIT} and _CREDIT.search(text):
        return NO_CREDIT
    return kind


def by_text(text: str) -> Kind:
    """The kind of an exception of which nothing but its words is known: whole words, so that "generate limit" is
    no rate limit. OpenAI's `type` then says the same as its `code`.
    """
    if _CONTEXT.search(text):
        return CONTEXT
    if _AUTHENTICATION.search(text):
        return AUTHENTICATION
    if _RATE_LIMIT.search(text):
        return msgspec.structs.replace(RATE_LIMIT, type=RATE_LIMIT.code)
    if _NO_MODEL.search(text):
        return msgspec.structs.replace(NO_MODEL, type=NO_MODEL.code)
    return SERVER
