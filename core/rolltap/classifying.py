"""What an exception means to a client, as the plugins see it."""

from rolltap.bases.backends import BackendHandle
from rolltap.errors import ErrorInfo, PluginError, RequestError
from rolltap.plugins import Plugins


async def classify(plugins: Plugins, error: BaseException, handle: BackendHandle | None = None) -> ErrorInfo:
    """Errors of rolltap's own say it themselves; the hook `classify_error` is asked about all others."""
    if isinstance(error, RequestError):
        return error.info
    if isinstance(error, PluginError):
        return ErrorInfo(status=500, message=str(error), code="plugin_error")
    info = await plugins.call_first("classify_error", error=error, backend=handle)
    if isinstance(info, ErrorInfo):
        return info
    return ErrorInfo(status=500, message=str(error) or type(error).__name__)
