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
    }
)
_FIRST_DELAY_S = 1.0
_LONGEST_DELAY_S = 60.0
_MAX_NUM_DOUBLINGS = 10


def outcome_of(code: str | None, num_deliveries: int, max_num_deliveries: int) -> Outcome:
    """
    Return what to do with a submission whose try has ended: None is an answer, else a failure.

    `bury` ends it too, and leaves a dead letter.
    """
    if code is None or code == "cancelled":
        return "end"
    if code == "draining":
        return "retry"  # nobody has tried
    is_over = code in _FINAL_CODES or num_deliveries >= max_num_deliveries
    return "bury" if is_over else "retry"


def was_never_placed(answer: Completion | Failed) -> bool:
    """Tell whether a try ran out of its time in the queue: then nothing was tried."""
    is_late = isinstance(answer, Failed) and answer.code == "deadline_exceeded"
    return is_late and answer.attempt == 0


def retry_delay_s(num_deliveries: int) -> float:
    """Return how long a submission rests after it was taken so often: longer each time."""
    num_doublings = min(max(num_deliveries, 1) - 1, _MAX_NUM_DOUBLINGS)
    return min(_FIRST_DELAY_S * 2.0**num_doublings, _LONGEST_DELAY_S)


def is_same(stored_digest: str | None, digest: str) -> bool:
    """Tell whether a stored result is of this body; one without a digest is whoever's asks."""
    return stored_digest in (None, digest)
