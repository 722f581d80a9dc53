"""Who is let in: refused at once is better than served too late. Pure."""

from typing import NamedTuple

from slipstream.shared.scheduling.queue import WaitingQueue
from slipstream.shared.scheduling.wait_estimate import WaitEstimate
from slipstream.shared.scheduling.waiting import WaitingRequest

MIN_RETRY_MS = 1000
_MAX_RETRY_MS = 600_000


class TooLate(NamedTuple):
    """Why a request would be served too late, and when it may be tried again."""

    message: str
    retry_after_ms: int


def judge(
    request: WaitingRequest, queue: WaitingQueue, estimate: WaitEstimate, now: float
) -> TooLate | None:
    """Return why a request is not let in, by how long it would wait; None: it is."""
    wait_s = estimate.wait_s(queue.work_ahead_s(request))
    if wait_s is None:
        return None
    limit_s = request.max_wait_s
    if wait_s > limit_s:
        return TooLate(
            f"a {request.latency_class} request would wait about {wait_s:.1f} s, "
            f"and at most {limit_s:g} s are promised",
            retry_ms(wait_s - limit_s),
        )
    if request.deadline_at is not None and now + wait_s + request.work_s > request.deadline_at:
        left_ms = 1000 * (request.deadline_at - now)
        return TooLate(
            f"it would wait about {wait_s:.1f} s and then take {request.work_s:.1f} s, and its "
            f"deadline_ms leaves {left_ms:.0f} ms",
            retry_ms(wait_s + request.work_s - left_ms / 1000),
        )
    return None


def retry_ms(seconds: float) -> int:
    """Return what to tell a client that is to come back when so much has been worked off."""
    return round(min(max(1000 * seconds, MIN_RETRY_MS), _MAX_RETRY_MS))
