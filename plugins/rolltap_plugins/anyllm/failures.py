"""What any-llm finds wrong by itself, before it asks a provider or after the provider has answered."""

from rolltap import BadRequest, UpstreamError
from rolltap_plugins.errors import classify
from rolltap_plugins.upstream.errors import unreadable

_REQUEST = "CompletionParams"
"""any-llm's type of a request."""

_UNREADABLE = (AttributeError, KeyError, TypeError)
"""What SDKs run into in an answer of another shape than they expect."""


def understood(error: Exception, key: str | None = None) -> Exception:
    """The error that says whose fault it is, where any-llm's own does not, and one without the key where the provider
    repeats it; otherwise the error itself.
    """
    if key and key in str(error):
        status = getattr(error, "status_code", None)
        return UpstreamError(
            str(error).replace(key, "***"), status=status if isinstance(status, int) else None
        )
    from pydantic import ValidationError  # noqa: PLC0415  # any-llm's, as slow to import

    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        if error.title == _REQUEST:
            return BadRequest(f"{where}: {first['msg']}.", param=where, code="invalid_value")
        return unreadable("", f"{where}: {first['msg']}")
    if type(error).__name__ == "ProviderError" and getattr(error, "status_code", None) is None:
        cause = getattr(error, "original_exception", None)
        if cause is None or isinstance(cause, _UNREADABLE):
            return unreadable("", error)
    if not isinstance(error, UpstreamError) and classify(error).status == 500:
        return UpstreamError(
            str(error), status=500
        )  # words that nobody knows are the provider's, all the same
    return error
