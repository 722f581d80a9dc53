"""Which failures may pass, and how long to wait before the next try. Pure."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from slipstream.client.errors import HttpStatusError
from slipstream.shared.client.answers import RequestFailedError
from slipstream.shared.errors import SlipstreamError

# Endings and losses after which the same request can be served: by others, or a little later.
_PASSING_CODES = frozenset(
    {
        "connection_lost",
        "disconnected",
        "draining",
        "incomplete_stream",
        "kv_lost",
        "lease_lost",
        "lost",
        "no_answer",
        "no_responders",
        "no_workers",
        "overloaded",
        "server_unreachable",
        "worker_lost",
    }
)
_PASSING_STATUSES = frozenset({429, 502, 503})
_JITTER = 0.5


@dataclass(frozen=True, kw_only=True)
class Retries:
    """
    How often a request is tried again, and after how long.

    Pauses double from `first_s` to `longest_s`, with jitter, so that clients that failed together
    don't come back together. A server that names a time is not asked before it.
    """

    max_num_retries: int = 5
    first_s: float = 0.25
    longest_s: float = 8.0

    def pause_s(
        self,
        error: SlipstreamError,
        num_failures: int,
        uniform: Callable[[], float] = random.random,
    ) -> float | None:
        """Return the wait after so many failures, this one included; None to give up."""
        if num_failures > self.max_num_retries or not may_pass(error):
            return None
        pause_s: float = min(self.first_s * 2.0 ** (num_failures - 1), self.longest_s)
        pause_s *= 1 - _JITTER * uniform()
        return (_retry_after_s(error) or 0.0) + pause_s


def may_pass(error: SlipstreamError) -> bool:
    """Tell whether the same request may be served when it is sent again."""
    if isinstance(error, HttpStatusError) and error.status in _PASSING_STATUSES:
        return True
    return error.code in _PASSING_CODES or _retry_after_s(error) is not None


def _retry_after_s(error: SlipstreamError) -> float | None:
    return error.retry_after_s if isinstance(error, RequestFailedError) else None
