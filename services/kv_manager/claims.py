"""Who waits for a lease, and what is kept for the first in line. Pure."""

from dataclasses import dataclass, field

from slipstream.services.kv_manager.records import Attempt, Holder, Rank
from slipstream.shared.messages.kv import Lease

# Who waits no longer than that may be passed by whoever fits: so small prompts fill the gaps.
PATIENCE_S = 0.5
# Whoever still waits asks at least every 0.2 s. One that has vanished keeps nobody waiting longer.
EXPIRES_S = 1.0


def rank_of(message: Lease, now: float) -> Rank:
    """Return how important an attempt is."""
    return (message.priority, message.elapsed_ms / 1000 - now)


@dataclass(slots=True)
class Claim:
    """One that was refused a lease for want of blocks."""

    attempt: Attempt
    holder: Holder
    rank: Rank
    num_blocks: int  # that must be there when it asks again
    since: float
    asked_at: float

    def is_over(self, now: float) -> bool:
        """Tell whether it asks no more."""
        return now - self.asked_at >= EXPIRES_S

    def is_kept_for(self, now: float) -> bool:
        """Tell whether it has waited long, and still does."""
        return now - self.since >= PATIENCE_S and not self.is_over(now)


@dataclass
class Claims:
    """
    The attempts that wait for blocks.

    Without them a lease goes to whoever asks while its blocks are there: a stream of small or new
    prompts takes all that comes free, and a large one, or one that gave way, never has its turn.
    """

    _waiting: dict[Attempt, Claim] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._waiting)

    def refused(self, message: Lease, num_cached: int, now: float) -> None:
        """Note who was refused, and how much would have been enough."""
        attempt = (message.request_id, message.attempt)
        known = self._waiting.get(attempt)
        self._waiting[attempt] = Claim(
            attempt=attempt,
            holder=(message.worker_id, message.worker_epoch),
            rank=rank_of(message, now),
            num_blocks=message.num_blocks - num_cached + message.num_spare_blocks,
            since=now if known is None or known.is_over(now) else known.since,
            asked_at=now,
        )

    def forget(self, attempt: Attempt) -> None:
        """Drop the claim of an attempt that has its blocks, or is over. Repeatable."""
        self._waiting.pop(attempt, None)

    def forget_all_of(self, holder: Holder) -> None:
        """Drop the claims of a process that has ended."""
        for attempt in [each.attempt for each in self._waiting.values() if each.holder == holder]:
            del self._waiting[attempt]

    def sweep(self, now: float) -> None:
        """Drop the claims of those that ask no more."""
        for claim in list(self._waiting.values()):
            if claim.is_over(now):
                del self._waiting[claim.attempt]

    def num_kept_from(self, attempt: Attempt, rank: Rank, now: float) -> int:
        """
        Return how many blocks an attempt must leave to one that is more important.

        To the first in line only: what is left beside that may be enough for others.
        """
        kept_for = [each for each in self._waiting.values() if each.is_kept_for(now)]
        first = max(kept_for, key=lambda each: each.rank, default=None)
        if first is None or first.attempt == attempt or first.rank <= rank:
            return 0
        return first.num_blocks
