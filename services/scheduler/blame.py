"""What the failure of an attempt means: whose fault it is, and whether another can help. Pure."""

from slipstream.shared.errors import NoRespondersError
from slipstream.shared.ids import WorkerId
from slipstream.shared.scheduling.placed import Placement

# The worker can't say any more what it did.
SILENT_CODES = frozenset({"worker_lost", "lost"})

# A worker that is full, leaving or gone has not failed: the request waits for its turn.
NOBODYS_FAULT = frozenset(
    {
        "worker_no_seat",
        "worker_draining",
        "decode_no_seat",
        "decode_draining",
        NoRespondersError.code,
    }
)

# The decode worker says so, but it is the other host that can't be reached or read.
_PREFILL_HOSTS_FAULT = frozenset({"kv_transfer_failed", "kv_no_common_plane"})


# Deaths of a worker during a step that are charged to a sequence of that step: after so many it has
# its steps for itself, and after one more it was the reason.
NUM_CHARGES_ALONE = 2
NUM_CHARGES_CRASHED = 3


def who_failed(code: str, placement: Placement | None, told_by: WorkerId) -> WorkerId | None:
    """Return who made an attempt fail: not always the worker that says so."""
    if placement is None:
        return told_by
    if code == NoRespondersError.code or code.startswith("decode_"):
        # Whoever held it found nobody to go on with it, or nobody with room.
        return placement.decode_worker_id
    return placement.prefill_worker_id if code in _PREFILL_HOSTS_FAULT else told_by
