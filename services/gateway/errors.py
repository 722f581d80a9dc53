"""What goes wrong, as OpenAI's clients expect to be told: a status and a body of one shape."""

from collections.abc import Mapping
from http import HTTPStatus

import msgspec

from slipstream.services.gateway.shapes import ErrorBody, ErrorDetail
from slipstream.shared.client.request_stream import RequestFailedError
from slipstream.shared.errors import InvalidRequestError, OverloadedError, SlipstreamError
from slipstream.shared.messages.common import Failed

CLIENT_CLOSED = 499  # nobody is left to read it: it stands in logs and metrics
_STATUSES: Mapping[str, int] = {
    "invalid_request": 400,
    "context_length_exceeded": 400,
    "constraint_failed": 400,
    "kv_too_large": 400,
    "invalid_api_key": 401,
    "model_not_found": 404,
    "unknown_route": 404,
    "method_not_allowed": 405,
    "body_timeout": 408,
    "unsupported_media_type": 400,
    "conflict": 409,
    "message_too_large": 413,
    "overloaded": 429,
    "cancelled": CLIENT_CLOSED,
    "no_workers": 503,
    "no_responders": 503,
    "disconnected": 503,
    "draining": 503,
    "lost": 503,
    "lease_lost": 503,
    "incomplete_stream": 503,
    "deadline_exceeded": 504,
    "no_answer": 504,
}
# Of codes that say what a worker or a KV manager refused, after every attempt has failed.
_OF_SERVICES = ("worker_", "kv_", "decode_")
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
        default = 503 if self.code.startswith(_OF_SERVICES) else 500
        return _STATUSES.get(self.code, default)

    @property
    def body(self) -> bytes:
        """The JSON of the answer."""
        return _encoder.encode(
            ErrorBody(
                ErrorDetail(
                    message=self.message,
                    type=_type_of(self.status),
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


def _type_of(status: int) -> str:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    is_server = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return "server_error" if is_server else "invalid_request_error"
