"""Which blocks transfers between hosts may read here, and which they may fill. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.services.kv_manager.lease_table import LeaseTable
from slipstream.services.kv_manager.pool import BlockPool
from slipstream.shared.ids import LeaseId
from slipstream.shared.messages.kv import KvRefused, Pull, RefusalReason


@dataclass
class PullBook:
    """Counts the transfers that write into the blocks of each lease: they may outlast it."""

    table: LeaseTable
    pool: BlockPool

    def begin(self, message: Pull) -> list[int] | KvRefused:
        """Return the blocks of a lease that a transfer is to fill; `end` must follow."""
        lease = self.table.leases.get(message.lease_id)
        if lease is None:
            return KvRefused(reason="unknown_lease")
        if lease.holder[0] != message.worker_id:
            return KvRefused(reason="not_holder")
        first = message.first_block_idx
        end = first + len(message.source.block_ids)
        if not lease.num_committed <= first <= end <= len(lease.block_ids):
            return KvRefused(
                reason="not_writable",
                message=f"blocks {first} to {end} of a lease of {len(lease.block_ids)}, of which "
                f"the first {lease.num_committed} are read-only",
            )
        lease.num_pulls += 1
        lease.was_pulled = True
        return lease.block_ids[first:end]

    def end(self, lease_id: LeaseId) -> None:
        """Note that a transfer writes no more, whether or not its lease is still alive."""
        lease = self.table.leases.get(lease_id)
        if lease is not None:
            lease.num_pulls -= 1
        elif (quarantine := self.table.quarantines.get(lease_id)) is not None:
            quarantine.num_pulls -= 1
            self.pool.free(self.table.freed(lease_id))

    def may_read(self, lease_id: LeaseId, block_ids: Sequence[int]) -> RefusalReason | None:
        """Return why another host may not read these blocks under a lease, or None."""
        lease = self.table.leases.get(lease_id)
        if lease is None:
            return "unknown_lease"
        return None if set(block_ids) <= set(lease.block_ids) else "not_holder"
