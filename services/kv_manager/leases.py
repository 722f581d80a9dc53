"""
Leases, grants and quarantine: who may write which block. Pure: time and messages come in as values.

A lease belongs to (request, attempt) and has one holder, a (worker, epoch). Everything that arrives
late or twice is counted and answered, never asserted.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from slipstream.services.kv_manager.integrity import find_problems
from slipstream.services.kv_manager.pool import BlockPool, BlockState
from slipstream.services.kv_manager.prefix_cache import PrefixCache
from slipstream.services.kv_manager.records import Attempt, HeldLease, Holder, Quarantine
from slipstream.shared.ids import LeaseId, WorkerId, new_lease_id
from slipstream.shared.messages.kv import (
    Adopt,
    Adopted,
    Blocks,
    Commit,
    Committed,
    Grant,
    Granted,
    KvRefused,
    Lease,
    Leased,
    LeaseSummary,
    Match,
    Matched,
    RefusalReason,
    Release,
    Released,
    Renew,
    Renewed,
)


@dataclass
class LeaseBook:
    """The verbs of the KV manager."""

    pool: BlockPool
    prefixes: PrefixCache
    block_size: int
    lease_s: float
    num_late_messages: int = 0
    _leases: dict[LeaseId, HeldLease] = field(default_factory=dict)
    _by_attempt: dict[Attempt, LeaseId] = field(default_factory=dict)
    _grants: dict[Holder, list[int]] = field(default_factory=dict)
    _quarantines: dict[LeaseId, Quarantine] = field(default_factory=dict)
    _tombstones: dict[Attempt, float] = field(default_factory=dict)  # until when
    _present: set[Holder] = field(default_factory=set)  # processes that can prove their end

    # Workers

    def worker_joined(self, worker_id: WorkerId, epoch: int) -> None:
        """
        Let a process hold blocks.

        Only these may: a message that arrives after its sender's end would hold blocks for nobody,
        and no proof would ever bring them back.
        """
        self._present.add((worker_id, epoch))

    def worker_gone(self, worker_id: WorkerId, epoch: int) -> int:
        """Take back everything of a process that has ended: its end is the proof."""
        holder = (worker_id, epoch)
        self._present.discard(holder)
        num_before = self.pool.num_available
        for lease in [each for each in self._leases.values() if each.holder == holder]:
            self.pool.free(self._end(lease))
        for lease_id, quarantine in list(self._quarantines.items()):
            if quarantine.holder == holder:
                self.pool.free(quarantine.block_ids)
                del self._quarantines[lease_id]
        self.pool.free(self._grants.pop(holder, []))
        return self.pool.num_available - num_before

    # Leases

    def lease(self, message: Lease, now: float) -> Leased | KvRefused:
        """Hold blocks for an attempt; a repeat is answered like the first."""
        attempt = (message.request_id, message.attempt)
        if attempt in self._tombstones:
            return self._refuse("cancelled", "this attempt was cancelled")
        holder = (message.worker_id, message.worker_epoch)
        if holder not in self._present:
            return self._late("stale_epoch")
        if message.num_blocks > self.pool.num_blocks:
            return self._refuse(
                "too_large", f"{message.num_blocks} blocks wanted of {self.pool.num_blocks}"
            )
        known = self._leases.get(self._by_attempt.get(attempt, LeaseId("")))
        if known is not None:
            return (
                self._leased(known)
                if known.holder == holder
                else self._refuse("not_holder", f"{known.holder[0]} holds this attempt")
            )
        lease = self._begin(message, now)
        if lease is None:
            return self._refuse("no_blocks", f"{message.num_blocks} blocks wanted")
        return self._leased(lease)

    def match(self, message: Match) -> Matched:
        """Tell how much a lease of these tokens would find; nothing is held by asking."""
        return Matched(num_cached_tokens=len(self.prefixes.find(message).blocks) * self.block_size)

    def commit(self, message: Commit) -> Committed | KvRefused:
        """Make the first whole blocks of a lease read-only, and findable by their tokens."""
        lease = self._held(message.lease_id, message.worker_id)
        if isinstance(lease, KvRefused):
            return lease
        self._grow(lease, message.grown)
        first = lease.num_committed
        num_blocks = min(message.num_tokens // self.block_size, len(lease.block_ids))
        new = lease.block_ids[first:num_blocks]
        if new:
            self.pool.commit(new)
            lease.prefix = self.prefixes.extend(lease.prefix, new, message, first)
            lease.num_committed = num_blocks
        return Committed(num_blocks=lease.num_committed)

    def adopt(self, message: Adopt, now: float) -> Adopted | KvRefused:
        """Pass a lease with its right to write to another worker, in one step."""
        lease = self._leases.get(message.lease_id)
        if lease is None:
            return self._late(
                "expired" if message.lease_id in self._quarantines else "unknown_lease"
            )
        to_holder = (message.to_worker_id, message.to_worker_epoch)
        if to_holder not in self._present:
            return self._late("stale_epoch")
        if lease.expires_at <= now:
            # The sweeper just hasn't come by: its giver may have lost it already.
            return self._late("expired")
        if lease.holder != to_holder:
            if lease.holder[0] != message.from_worker_id:
                return self._late("not_holder")
            lease.holder = to_holder
        lease.expires_at = now + self.lease_s
        return Adopted(
            lease_id=lease.lease_id,
            blocks=self.pool.blocks(lease.block_ids),
            lease_ms=int(self.lease_s * 1000),
        )

    def renew(self, message: Renew, now: float) -> Renewed:
        """Extend many leases; blocks taken from the worker's grant enter them."""
        holder = (message.worker_id, message.worker_epoch)
        lost = []
        for renewal in message.renewals:
            lease = self._leases.get(renewal.lease_id)
            if lease is None or lease.holder != holder:
                lost.append(renewal.lease_id)
                continue
            lease.expires_at = now + self.lease_s
            self._grow(lease, renewal.grown)
            self._shrink(lease, renewal.num_shrunk_blocks)
        return Renewed(lease_ms=int(self.lease_s * 1000), lost=lost)

    def release(self, message: Release, now: float) -> Released:
        """End a lease; from its holder also the proof that nothing writes into its blocks."""
        if message.is_tombstone:
            self._tombstones[message.request_id, message.attempt] = now + 2 * self.lease_s
        if message.worker_id is None:
            return Released(was_held=False)
        # Also when the lease itself is lost: the sequence's other blocks have no other way back.
        for holder in [each for each in self._grants if each[0] == message.worker_id]:
            self.pool.free(self._take_granted(holder, message.grown))
        attempt = (message.request_id, message.attempt)
        # A worker whose lease was never answered names only the attempt.
        lease_id = message.lease_id or self._by_attempt.get(attempt, LeaseId(""))
        quarantine = self._quarantines.get(lease_id)
        if quarantine is not None and quarantine.holder[0] == message.worker_id:
            self.pool.free(quarantine.block_ids)
            del self._quarantines[lease_id]
            return Released(was_held=True)
        lease = self._leases.get(lease_id)
        if lease is None or lease.holder[0] != message.worker_id:
            self.num_late_messages += 1
            return Released(was_held=False)
        self.pool.free(self._end(lease))
        return Released(was_held=True)

    # Grants

    def grant(self, message: Grant) -> Granted:
        """Hand out blocks ahead of need, fewer than asked for when they are short."""
        holder = (message.worker_id, message.worker_epoch)
        self.pool.free(self._take_granted(holder, message.returned))
        if holder not in self._present:
            self.num_late_messages += 1
            return Granted(blocks=Blocks(), num_free_blocks=self.pool.num_available)
        num_blocks = min(message.num_blocks, self.pool.num_available)
        taken = self.pool.take(max(0, num_blocks), BlockState.GRANTED) or []
        if taken:
            self._grants.setdefault(holder, []).extend(taken)
        return Granted(blocks=self.pool.blocks(taken), num_free_blocks=self.pool.num_available)

    # Time

    def sweep(self, now: float) -> dict[LeaseId, Attempt]:
        """End leases that ran out: what they alone write is quarantined, the rest let go of."""
        expired = [lease for lease in self._leases.values() if lease.expires_at <= now]
        for lease in expired:
            writable = self._end(lease)
            if writable:
                self.pool.move(writable, BlockState.QUARANTINED)
                self._quarantines[lease.lease_id] = Quarantine(lease.holder, writable)
        for attempt in [a for a, until in self._tombstones.items() if until <= now]:
            del self._tombstones[attempt]
        return {lease.lease_id: lease.attempt for lease in expired}

    # Books

    @property
    def num_leases(self) -> int:
        """Leases alive."""
        return len(self._leases)

    def oldest_lease_s(self, now: float) -> float:
        """Return how long the oldest lease has lived, renewed or not; 0 when there is none."""
        return max((now - lease.since for lease in self._leases.values()), default=0.0)

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
            for lease in self._leases.values()
        ]

    def check_integrity(self) -> list[str]:
        """Compare the books with the block states; empty when all blocks are accounted for."""
        committed = (each.committed_ids for each in self._leases.values())
        return find_problems(self.pool, committed, self._owned())

    def _owned(self) -> Iterator[tuple[BlockState, list[int]]]:
        """Yield the blocks that have one owner, owner by owner."""
        for lease in self._leases.values():
            yield BlockState.LEASED, lease.writable_ids
        for granted in self._grants.values():
            yield BlockState.GRANTED, granted
        for quarantine in self._quarantines.values():
            yield BlockState.QUARANTINED, quarantine.block_ids

    def _held(self, lease_id: LeaseId, worker_id: WorkerId) -> HeldLease | KvRefused:
        lease = self._leases.get(lease_id)
        if lease is None:
            return self._late("expired" if lease_id in self._quarantines else "unknown_lease")
        return lease if lease.holder[0] == worker_id else self._late("not_holder")

    def _begin(self, message: Lease, now: float) -> HeldLease | None:
        """Make a lease of the blocks that are cached and of fresh ones, or None without enough."""
        cached = self.prefixes.find(message)
        num_fresh = message.num_blocks - len(cached.block_ids)
        # Held before any are taken, or they might be evicted for it.
        self.pool.hold(cached.block_ids)
        fresh = self.pool.take(num_fresh, BlockState.LEASED)
        if fresh is None:
            self.pool.let_go(cached.block_ids)
            return None
        self.pool.count_hits(cached.block_ids)
        self.prefixes.count(message, cached)
        lease = HeldLease(
            lease_id=new_lease_id(),
            attempt=(message.request_id, message.attempt),
            holder=(message.worker_id, message.worker_epoch),
            block_ids=[*cached.block_ids, *fresh],
            expires_at=now + self.lease_s,
            since=now,
            num_committed=len(cached.block_ids),
            num_cached=len(cached.block_ids),
            prefix=cached.end,
        )
        self._leases[lease.lease_id] = lease
        self._by_attempt[lease.attempt] = lease.lease_id
        return lease

    def _end(self, lease: HeldLease) -> list[int]:
        """End a lease: let go of what is committed, and return the blocks that it alone wrote."""
        del self._leases[lease.lease_id]
        del self._by_attempt[lease.attempt]
        self.pool.let_go(lease.committed_ids)
        return lease.writable_ids

    def _grow(self, lease: HeldLease, grown: Blocks) -> None:
        entering = self._take_granted(lease.holder, grown)
        self.pool.move(entering, BlockState.LEASED)
        lease.block_ids.extend(entering)

    def _shrink(self, lease: HeldLease, num_blocks: int) -> None:
        num_blocks = min(num_blocks, len(lease.block_ids) - lease.num_committed)
        if num_blocks <= 0:
            return
        leaving = lease.block_ids[-num_blocks:]
        del lease.block_ids[-num_blocks:]
        self.pool.move(leaving, BlockState.GRANTED)
        self._grants.setdefault(lease.holder, []).extend(leaving)

    def _take_granted(self, holder: Holder, blocks: Blocks) -> list[int]:
        """Take blocks out of a worker's grant; those it doesn't hold (a repeat) are passed over."""
        granted = self._grants.get(holder, [])
        taken = []
        for block_id, generation in zip(blocks.block_ids, blocks.generations, strict=True):
            if block_id in granted and self.pool.is_current(block_id, generation):
                granted.remove(block_id)
                taken.append(block_id)
        return taken

    def _leased(self, lease: HeldLease) -> Leased:
        return Leased(
            lease_id=lease.lease_id,
            blocks=self.pool.blocks(lease.block_ids),
            lease_ms=int(self.lease_s * 1000),
            num_cached_tokens=lease.num_cached * self.block_size,
        )

    def _late(self, reason: RefusalReason) -> KvRefused:
        self.num_late_messages += 1
        return self._refuse(reason, "")

    def _refuse(self, reason: RefusalReason, message: str) -> KvRefused:
        return KvRefused(reason=reason, message=message, num_free_blocks=self.pool.num_available)
