"""What an exception means to a client, as the plugins see it."""

from rolltap.backend_handle import BackendHandle
from rolltap.errors import ErrorInfo, PluginError, RequestError, RolltapError, StoreError
from rolltap.plugins import Plugins


async def classify(plugins: Plugins, error: BaseException, handle: BackendHandle | None = None) -> ErrorInfo:
    """Errors of rolltap's own say it themselves; the hook `classify_error` is asked about all others.

    Never raises: a plugin that fails at it is what the client is told of, together with the error itself.
    """
    if isinstance(error, RequestError):
        return error.info
    if isinstance(error, StoreError):
        return ErrorInfo(status=503, message=str(error), code="store_unavailable", retry_after=5)
    if isinstance(error, PluginError):
        plugins.count(error)
        return ErrorInfo(status=500, message=str(error), code="plugin_error")
    try:
        info: ErrorInfo | None = await plugins.call_first(
            "classify_error", error=error, backend=handle.view if handle is not None else None
        )
    except RequestError as failure:
        return failure.info
    except RolltapError as failure:
        if isinstance(failure, PluginError):
            plugins.count(failure)
        said = f"{failure} (it was asked about {type(error).__name__}: {error})"
        return ErrorInfo(status=500, message=said, code="plugin_error")
    return info or ErrorInfo(status=500, message=str(error) or type(error).__name__)
