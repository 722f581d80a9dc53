"""The HTTP status, and OpenAI's type, of each code of an error. Pure."""

from collections.abc import Mapping
from http import HTTPStatus

CLIENT_CLOSED = 499  # nobody is left to read it: it stands in logs, metrics and batches
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
    "head_too_large": 431,
    "overloaded": 429,
    "cancelled": CLIENT_CLOSED,
    "no_workers": 503,
    "no_responders": 503,
    "not_permitted": 503,
    "disconnected": 503,
    "draining": 503,
    "lost": 503,
    "lease_lost": 503,
    "incomplete_stream": 503,
    "deadline_exceeded": 504,
    "expired": 504,
    "no_answer": 504,
}
# Of codes that say what a worker or a KV manager refused, after every attempt has failed.
_OF_SERVICES = ("worker_", "kv_", "decode_")


def status_of(code: str) -> int:
    """Return the HTTP status of a code."""
    default = 503 if code.startswith(_OF_SERVICES) else 500
    return _STATUSES.get(code, default)


def type_of(status: int) -> str:
    """Return what OpenAI calls errors of a status."""
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    is_server = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return "server_error" if is_server else "invalid_request_error"
