"""How a request went through Slipstream: the field `slipstream` at the end of an answer. Pure."""

import hashlib

import msgspec

from slipstream.shared.ids import RequestId
from slipstream.shared.messages.common import Route, Timings, Usage
from slipstream.shared.messages.generate import Finished

_NAME_CHARACTERS = 8


class Journey(msgspec.Struct, frozen=True, kw_only=True):
    """Of an answer's first choice: its name in the console, its trace, its way and its times."""

    request: str
    trace_id: str | None
    attempt: int
    route: Route | None
    route_reason: str | None
    queue_ms: float
    prefill_ms: float
    hand_over_ms: float
    ttft_ms: float
    tpot_ms: float | None
    total_ms: float
    num_cached_tokens: int
    num_drafted_tokens: int
    num_accepted_tokens: int
    num_steps: int
    num_preemptions: int


def public_name(request_id: RequestId) -> str:
    """Return a name under which a request may be shown: its id is the right to cancel it."""
    return hashlib.sha256(request_id.encode()).hexdigest()[:_NAME_CHARACTERS]


def journey_of(ending: Finished | None) -> Journey | None:
    """Return how a request went; None before it has ended."""
    if ending is None:
        return None
    times: Timings = ending.timings
    usage: Usage = ending.usage
    return Journey(
        request=public_name(ending.request_id),
        trace_id=ending.trace_id,
        attempt=ending.attempt,
        route=ending.route,
        route_reason=ending.route_reason,
        queue_ms=_rounded(times.queue_ms),
        prefill_ms=_rounded(times.prefill_ms),
        hand_over_ms=_rounded(times.hand_over_ms),
        ttft_ms=_rounded(times.ttft_ms),
        tpot_ms=None if times.tpot_ms is None else _rounded(times.tpot_ms),
        total_ms=_rounded(times.total_ms),
        num_cached_tokens=usage.num_cached_tokens,
        num_drafted_tokens=usage.num_drafted_tokens,
        num_accepted_tokens=usage.num_accepted_tokens,
        num_steps=usage.num_steps,
        num_preemptions=usage.num_preemptions,
    )


def _rounded(milliseconds: float) -> float:
    return round(milliseconds, 3)
