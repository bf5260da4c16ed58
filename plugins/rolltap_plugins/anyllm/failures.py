"""What any-llm finds wrong by itself, before it asks a provider or after the provider has answered."""

from rolltap import BadRequest, UpstreamError

_REQUEST = "CompletionParams"
"""any-llm's type of a request."""

_UNREADABLE = (AttributeError, KeyError, TypeError)
"""What SDKs run into in an answer of another shape than they expect."""


def understood(error: Exception) -> Exception:
    """The error that says whose fault it is, where any-llm's own does not; otherwise the error itself."""
    from pydantic import ValidationError  # noqa: PLC0415  # any-llm's, as slow to import

    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        if error.title == _REQUEST:
            return BadRequest(f"{where}: {first['msg']}.", param=where, code="invalid_value")
        return UpstreamError(f"the upstream's answer can't be read: {where}: {first['msg']}")
    if type(error).__name__ == "ProviderError" and getattr(error, "status_code", None) is None:
        cause = getattr(error, "original_exception", None)
        if cause is None or isinstance(cause, _UNREADABLE):
            return UpstreamError(f"the upstream's answer can't be read: {error}")
    return error
