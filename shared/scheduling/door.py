"""Who is let in: refused at once is better than served too late. Pure."""

from dataclasses import dataclass
from typing import NamedTuple

from slipstream.shared.scheduling.fleet import Fleet
from slipstream.shared.scheduling.prompt_window import SHORT_PART
from slipstream.shared.scheduling.queue import WaitingQueue
from slipstream.shared.scheduling.wait_estimate import WaitEstimate
from slipstream.shared.scheduling.waiting import WaitingRequest
from slipstream.shared.scheduling.workload import Rates

MIN_RETRY_MS = 1000
_MAX_RETRY_MS = 600_000
_LEAST_PART = 0.5  # of what work is thought to be: estimates err
_AMPLE_S = 60.0  # for any prompt, where nobody waits


class TooLate(NamedTuple):
    """Why a request would be served too late, and when it may be tried again."""

    message: str
    retry_after_ms: int | None  # None: waiting for others is not why


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known of how long requests will wait."""

    queue: WaitingQueue
    estimate: WaitEstimate
    least_rate: float  # seconds of work a second: what the workers that are up do at least
    busy_s: float  # what the least busy of them has before the next prompt
    has_free_seats: bool  # then it is prompts that wait, and short ones pass
    is_speed_known: bool  # work and prompts are in seconds of these workers, and no guess


def is_certain(queue: WaitingQueue, deadline_s: float) -> bool:
    """Tell whether a request is let in whatever it is: most are, and looking costs."""
    return not len(queue) and deadline_s >= _AMPLE_S


def least_rate(fleet: Fleet) -> float:
    """Return the seconds of work a second that workers do at the very least."""
    return _LEAST_PART * fleet.num_open("decode")


def outlook_of(
    queue: WaitingQueue,
    fleet: Fleet,
    estimate: WaitEstimate,
    rates: Rates,
    *,
    is_speed_known: bool,
) -> Outlook:
    """Return what queue and workers tell of the wait."""
    decode = fleet.least_busy("decode")
    busy = fleet.least_busy("prefill") or decode
    return Outlook(
        queue=queue,
        estimate=estimate,
        least_rate=least_rate(fleet),
        busy_s=busy[0].window.num_tokens / rates.prompt_tokens_per_s if busy else 0.0,
        has_free_seats=bool(decode) and decode[0].num_free_seats > 0,
        is_speed_known=is_speed_known,
    )


def judge(request: WaitingRequest, outlook: Outlook, now: float) -> TooLate | None:
    """Return why a request is not let in, by how long it would wait; None: it is."""
    queued_s = outlook.estimate.wait_s(
        outlook.queue.work_ahead_s(request, may_pass=outlook.has_free_seats), outlook.least_rate
    )
    # Much longer prompts that a worker has are passed there.
    is_passing = request.prefill_s * SHORT_PART <= outlook.busy_s
    wait_s = (queued_s or 0.0) + (0.0 if is_passing else outlook.busy_s)
    # Nobody is refused for its class while it is not known how fast the queue moves.
    if queued_s and wait_s > request.max_wait_s:
        return TooLate(
            f"a {request.latency_class} request would wait about {wait_s:.1f} s, "
            f"and at most {request.max_wait_s:g} s are promised",
            retry_ms(wait_s - request.max_wait_s),
        )
    if request.deadline_at is None or not outlook.is_speed_known:
        return None
    needed_s = wait_s + request.prefill_s
    left_s = request.deadline_at - now
    if needed_s <= left_s:
        return None
    if request.prefill_s > left_s:
        return TooLate(
            f"its first token takes about {request.prefill_s:.1f} s by itself, and its deadline_ms "
            f"leaves {1000 * left_s:.0f} ms",
            None,
        )
    return TooLate(
        f"its first token would come after about {needed_s:.1f} s, and its deadline_ms leaves "
        f"{1000 * left_s:.0f} ms",
        retry_ms(needed_s - left_s),
    )


def retry_ms(seconds: float) -> int:
    """Return what to tell a client that is to come back when so much has been worked off."""
    return round(min(max(1000 * seconds, MIN_RETRY_MS), _MAX_RETRY_MS))
