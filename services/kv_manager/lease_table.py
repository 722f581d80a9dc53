"""The leases that are alive, and what is left of those that ran out."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from slipstream.services.kv_manager.integrity import find_problems
from slipstream.services.kv_manager.pool import BlockPool, BlockState
from slipstream.services.kv_manager.records import Attempt, HeldLease, Holder, Quarantine
from slipstream.services.kv_manager.slices import Sliced
from slipstream.shared.ids import LeaseId, WorkerId
from slipstream.shared.messages.kv import LeaseSummary


@dataclass
class LeaseTable:
    """Finds leases by id, attempt and holder; keeps quarantined blocks until their proof."""

    leases: dict[LeaseId, HeldLease] = field(default_factory=dict)
    quarantines: dict[LeaseId, Quarantine] = field(default_factory=dict)
    by_attempt: dict[Attempt, LeaseId] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.leases)

    def add(self, lease: HeldLease) -> None:
        """Take a new lease."""
        self.leases[lease.lease_id] = lease
        self.by_attempt[lease.attempt] = lease.lease_id

    def remove(self, lease: HeldLease) -> None:
        """Forget a lease."""
        del self.leases[lease.lease_id]
        del self.by_attempt[lease.attempt]

    def of_attempt(self, attempt: Attempt) -> HeldLease | None:
        """Return the lease of an attempt."""
        return self.leases.get(self.by_attempt.get(attempt, LeaseId("")))

    def of_holder(self, holder: Holder) -> list[HeldLease]:
        """Return all that a process holds."""
        return [lease for lease in self.leases.values() if lease.holder == holder]

    def expired(self, now: float) -> list[HeldLease]:
        """Return the leases that ran out."""
        return [lease for lease in self.leases.values() if lease.expires_at <= now]

    def renew_all(self, until: float) -> None:
        """Have every lease last: for a while nobody could renew any."""
        for lease in self.leases.values():
            lease.expires_at = until

    def proved(self, lease_id: LeaseId, worker_id: WorkerId) -> list[int] | None:
        """Take a holder's word that it writes no more; return the blocks that are free by it."""
        quarantine = self.quarantines.get(lease_id)
        if quarantine is None or quarantine.holder[0] != worker_id:
            return None
        quarantine.is_proved = True
        return self.freed(lease_id)

    def proved_gone(self, holder: Holder) -> Iterator[list[int]]:
        """Take the end of a process as its word for all; yield the blocks that are free by it."""
        for lease_id, quarantine in list(self.quarantines.items()):
            if quarantine.holder == holder:
                quarantine.is_proved = True
                yield self.freed(lease_id)

    def freed(self, lease_id: LeaseId) -> list[int]:
        """End a quarantine if nobody can write into its blocks any more, and return these."""
        quarantine = self.quarantines[lease_id]
        if not quarantine.is_over:
            return []
        del self.quarantines[lease_id]
        return quarantine.block_ids

    def oldest_s(self, now: float) -> float:
        """Return how long the oldest lease has lived, renewed or not; 0 when there is none."""
        return max((now - lease.since for lease in self.leases.values()), default=0.0)

    def summaries(self, now: float) -> list[LeaseSummary]:
        """Describe every lease."""
        return [
            LeaseSummary(
                lease_id=lease.lease_id,
                request_id=lease.attempt[0],
                attempt=lease.attempt[1],
                worker_id=lease.holder[0],
                num_blocks=len(lease.block_ids),
                num_committed_blocks=lease.num_committed,
                remaining_ms=int((lease.expires_at - now) * 1000),
            )
            for lease in self.leases.values()
        ]

    def problems(self, pool: BlockPool, grants: Iterator[list[int]]) -> Sliced[list[str]]:
        """Compare the books with the block states; empty when all blocks are accounted for."""
        num_reserved = pool.num_reserved
        num_promised = sum(lease.num_reserved for lease in self.leases.values())
        # Copies, all of one moment: what follows pauses.
        read = [each.read_ids for each in self.leases.values()]
        owned = [(state, list(block_ids)) for state, block_ids in self._owned(grants)]
        found = yield from find_problems(pool, read, owned)
        if num_promised != num_reserved:
            found.append(f"{num_reserved} blocks are reserved, {num_promised} promised")
        return found

    def _owned(self, grants: Iterator[list[int]]) -> Iterator[tuple[BlockState, list[int]]]:
        """Yield the blocks that have one owner, owner by owner."""
        for lease in self.leases.values():
            yield BlockState.LEASED, lease.writable_ids
        for granted in grants:
            yield BlockState.GRANTED, granted
        for quarantine in self.quarantines.values():
            yield BlockState.QUARANTINED, quarantine.block_ids
