"""Every error that rolltap raises on purpose.

RolltapError
├ ConfigError            a wrong config, option or command line: exit code 2
├ PluginError            a plugin that fails, is missing or breaks a hook's rules
├ Unsupported            a backend can't do what it was asked to do
├ StoreError             the store can't keep or read a session's log: 503
├ Unreachable            a client's server does not answer
├ FormatError            a stored entry that this version can't read
└ RequestError           ends one request, carries its ErrorInfo
  ├ BadRequest           400, names the field
  ├ NotFound             404
  └ Overloaded           429, says when to come back

UpstreamError            what a backend raises for an answer it could not use; `classify_error` reads it
"""

from collections.abc import Mapping

from msgspec import Struct


class ErrorInfo(Struct, frozen=True, kw_only=True):
    """What went wrong, free of any dialect; converters put it into their own words.

    `type` and `code` are OpenAI's; a converter for another dialect maps from `status` and `code`.
    """

    status: int
    message: str
    type: str = "server_error"
    code: str | None = "api_error"
    param: str | None = None
    retry_after: float | None = None
    """Seconds until a retry makes sense, where known."""
    should_retry: bool | None = None
    """Sent as `x-should-retry` where set."""


class RolltapError(Exception):
    """The root of rolltap's own errors."""


class ConfigError(RolltapError):
    """A wrong config, option or command line. The message names the file, the key, the value and the way out."""


class PluginError(RolltapError):
    """A plugin failed, is missing, or broke a hook's rules; the message begins with the plugin's name."""

    def __init__(self, message: str, *, plugin: str = "") -> None:
        super().__init__(message)
        self.plugin = plugin
        """The plugin's name, where it is one plugin's failure."""


class Unsupported(RolltapError):
    """A backend can't do what it was asked to do, such as to swap weights."""


class StoreError(RolltapError):
    """The store failed: disk full, database gone. No engine's fault and no client's; the request may be tried again."""


class FormatError(StoreError):
    """A stored entry that this version can't read."""


class Unreachable(RolltapError):
    """The server that a client talks to does not answer; the message begins with its address."""


def failure(plugin: str, problem: str) -> PluginError:
    """The error that says what a plugin did wrong."""
    return PluginError(f"{plugin}: {problem}", plugin=plugin)


class RequestError(RolltapError):
    """Ends a request with a known answer."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


class BadRequest(RequestError):
    """400: the client's body is wrong; `param` names the field."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(
            ErrorInfo(status=status, message=message, type="invalid_request_error", code=code, param=param)
        )


class NotFound(RequestError):
    """404: no such session, model, backend or path."""

    def __init__(self, message: str, *, code: str = "not_found", param: str | None = None) -> None:
        super().__init__(
            ErrorInfo(status=404, message=message, type="invalid_request_error", code=code, param=param)
        )


class Overloaded(RequestError):
    """429: a limit of rolltap itself is reached; `retry_after` in seconds."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(
            ErrorInfo(
                status=429,
                message=message,
                type="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after=retry_after,
            )
        )


class UpstreamError(Exception):
    """A backend's upstream answered with something other than a completion.

    `status` is its HTTP status (None where the answer had none, such as a stream that ended early); `code` is
    the upstream's own word for the fault.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.headers = headers or {}
