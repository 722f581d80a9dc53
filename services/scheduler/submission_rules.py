"""What becomes of a submission after a try at it. Pure."""

from typing import Literal

from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Completion

Outcome = Literal["end", "bury", "retry"]

# Another try with the same body would end in the same way, or there is nobody left who wants one.
_FINAL_CODES = frozenset(
    {
        "cancelled",
        "conflict",
        "constraint_failed",
        "context_length_exceeded",
        "deadline_exceeded",
        "expired",
        "invalid_request",
        "kv_incompatible",
        "kv_mismatch",
        "kv_too_large",
        "message_too_large",
        "model_not_found",
        "non_finite_logits",
        "worker_crashed",
    }
)
# A longer queue, or a scheduler that goes: nobody has tried.
_UNTRIED_CODES = frozenset({"draining", "overloaded"})
_FIRST_DELAY_S = 1.0
_LONGEST_DELAY_S = 60.0
_SHORTEST_REST_S = 0.05
_LONGEST_REST_S = 600.0  # for who is told when there may be room
_MAX_NUM_DOUBLINGS = 10


def outcome_of(code: str | None, num_deliveries: int, max_num_deliveries: int) -> Outcome:
    """
    Return what to do with a submission whose try has ended: None is an answer, else a failure.

    `bury` ends it too, and leaves a dead letter.
    """
    if code is None or code == "cancelled":
        return "end"
    if code in _UNTRIED_CODES:
        return "retry"
    is_over = code in _FINAL_CODES or num_deliveries >= max_num_deliveries
    return "bury" if is_over else "retry"


def was_never_placed(answer: Completion | Failed) -> bool:
    """Tell whether a try ran out of its time in the queue: then nothing was tried."""
    is_late = isinstance(answer, Failed) and answer.code == "deadline_exceeded"
    return is_late and answer.attempt == 0


def retry_delay_s(num_deliveries: int, retry_after_ms: int | None = None) -> float:
    """Return how long a submission rests after it was taken so often: longer each time."""
    num_doublings = min(max(num_deliveries, 1) - 1, _MAX_NUM_DOUBLINGS)
    delay_s = min(_FIRST_DELAY_S * 2.0**num_doublings, _LONGEST_DELAY_S)
    return max(delay_s, rest_for_room_s(retry_after_ms))


def rest_for_room_s(retry_after_ms: int | None) -> float:
    """Return after what time to ask again who said that there is no room."""
    return min(max((retry_after_ms or 0) / 1000, _SHORTEST_REST_S), _LONGEST_REST_S)


def may_go_back(num_deliveries: int, max_num_deliveries: int) -> bool:
    """
    Tell whether a submission that finds no room is put back, not kept in hand until it does.

    Each delivery is one of those after which it is given up, and the rest are for real tries.
    """
    return num_deliveries <= max_num_deliveries // 2
