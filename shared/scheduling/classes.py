"""Latency classes: who goes first, and within what time its first token is promised."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from slipstream.shared.messages.common import LatencyClassName


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyClass:
    """What requests of a class can count on."""

    name: LatencyClassName
    rank: int  # the lower goes first
    # Workers order prompts and choose who gives way by one number; a class outweighs any priority.
    job_priority: int
    # Of the first token: who would have it later is refused at the door, who has waited so long in
    # the queue is refused there.
    ttft_target_s: float
    aging_s: float  # after so long in the queue its turn comes between those of better classes


_CLASS_STEP = 1000  # above the range of a request's own priority

CLASSES: Mapping[LatencyClassName, LatencyClass] = MappingProxyType(
    {
        each.name: each
        for each in (
            LatencyClass(
                name="interactive",
                rank=0,
                job_priority=_CLASS_STEP,
                ttft_target_s=2.0,
                aging_s=1.0,
            ),
            LatencyClass(
                name="standard",
                rank=1,
                job_priority=0,
                ttft_target_s=60.0,
                aging_s=15.0,
            ),
            LatencyClass(
                name="batch",
                rank=2,
                job_priority=-_CLASS_STEP,
                ttft_target_s=3600.0,
                aging_s=60.0,
            ),
        )
    }
)

DEFAULT_CLASS: LatencyClassName = "standard"
BEST_CLASS: LatencyClassName = "interactive"


def class_of_priority(job_priority: int) -> int:
    """Return how urgent the class of a job is, by its priority: the greater, the more."""
    return (job_priority + _CLASS_STEP // 2) // _CLASS_STEP
