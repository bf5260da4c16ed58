"""Says what `Busy`, an exception of one's own, means to a client: in whichever wire format it speaks."""

from rolltap import ErrorInfo, hookimpl


class Busy(Exception):
    """The model is being loaded; `ready_in_s` is how long that will take yet."""

    def __init__(self, ready_in_s: float) -> None:
        super().__init__(f"the model is ready in {ready_in_s:g} s")
        self.ready_in_s = ready_in_s


@hookimpl
def classify_error(error: BaseException) -> ErrorInfo | None:
    """Asked about every exception that ends a request; None for all but one's own."""
    if not isinstance(error, Busy):
        return None
    return ErrorInfo(
        status=429,
        type="rate_limit_error",
        code="model_loading",
        message=str(error),
        retry_after=error.ready_in_s,
    )
