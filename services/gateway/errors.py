"""What goes wrong, as OpenAI's clients expect to be told: a status and a body of one shape."""

from http import HTTPStatus

import msgspec

from slipstream.services.gateway.shapes import ErrorBody, ErrorDetail
from slipstream.shared.client.request_stream import RequestFailedError
from slipstream.shared.errors import InvalidRequestError, OverloadedError, SlipstreamError
from slipstream.shared.messages.common import Failed
from slipstream.shared.openai.statuses import status_of, type_of

_RETRY_MS = 1000  # where nobody said when it may go again
_RETRIED = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_encoder = msgspec.json.Encoder()


class ApiError(SlipstreamError):
    """A request that is answered with an error."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_ms = retry_after_ms
        super().__init__(message)

    @property
    def status(self) -> int:
        """The HTTP status."""
        return status_of(self.code)

    @property
    def body(self) -> bytes:
        """The JSON of the answer."""
        return _encoder.encode(
            ErrorBody(
                ErrorDetail(
                    message=self.message,
                    type=type_of(self.status),
                    param=self.param,
                    code=self.code,
                )
            )
        )

    @property
    def headers(self) -> dict[str, str]:
        """When to try again, for those that can be tried again."""
        if self.status not in _RETRIED:
            return {"www-authenticate": "Bearer"} if self.status == HTTPStatus.UNAUTHORIZED else {}
        retry_ms = _RETRY_MS if self.retry_after_ms is None else self.retry_after_ms
        return {"retry-after": str(-(-retry_ms // 1000)), "retry-after-ms": str(retry_ms)}


def invalid(param: str, message: str) -> ApiError:
    """Return the error of a field that can't be served as it stands."""
    return ApiError(
        "invalid_request", f"{param}: {message}" if param else message, param=param or None
    )


def api_error_of(error: SlipstreamError) -> ApiError:
    """Return what a client is told of an error of ours."""
    match error:
        case ApiError():
            return error
        case RequestFailedError():
            return _of_failed(error.failed)
        case InvalidRequestError():
            return ApiError(error.code, str(error), param=error.field or None)
        case OverloadedError():
            return ApiError(error.code, str(error), retry_after_ms=error.retry_after_ms)
    if error.code == "no_responders":
        return ApiError(error.code, "no scheduler is up; try again in a moment")
    return ApiError(error.code, str(error))


def _of_failed(failed: Failed) -> ApiError:
    return ApiError(
        failed.code,
        failed.message,
        param=failed.field,
        retry_after_ms=failed.retry_after_ms,
    )
