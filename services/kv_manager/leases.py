"""
Leases, grants and quarantine: who may write which block. Pure: time and messages come in as values.

A lease belongs to (request, attempt) and has one holder, a (worker, epoch). Everything that arrives
late or twice is counted and answered, never asserted.
"""

from dataclasses import dataclass, field

from slipstream.services.kv_manager.pool import BlockPool, BlockState
from slipstream.shared.ids import LeaseId, RequestId, WorkerId, new_lease_id
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
    RefusalReason,
    Release,
    Released,
    Renew,
    Renewed,
)

Holder = tuple[WorkerId, int]  # a worker in one of its epochs
Attempt = tuple[RequestId, int]


@dataclass(slots=True)
class _Lease:
    lease_id: LeaseId
    attempt: Attempt
    holder: Holder
    block_ids: list[int]
    expires_at: float
    since: float
    num_committed: int = 0  # block_ids[:num_committed] are COMMITTED, the rest LEASED


@dataclass(slots=True)
class _Quarantine:
    """Blocks of an expired lease whose owner hasn't proved yet that it stopped writing."""

    holder: Holder
    block_ids: list[int]


@dataclass
class LeaseBook:
    """The verbs of the KV manager."""

    pool: BlockPool
    block_size: int
    lease_s: float
    num_late_messages: int = 0
    _leases: dict[LeaseId, _Lease] = field(default_factory=dict)
    _by_attempt: dict[Attempt, LeaseId] = field(default_factory=dict)
    _grants: dict[Holder, list[int]] = field(default_factory=dict)
    _quarantines: dict[LeaseId, _Quarantine] = field(default_factory=dict)
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
        num_before = self.pool.num_free
        for lease in [each for each in self._leases.values() if each.holder == holder]:
            self._end(lease)
            self.pool.free(lease.block_ids)
        for lease_id, quarantine in list(self._quarantines.items()):
            if quarantine.holder == holder:
                self.pool.free(quarantine.block_ids)
                del self._quarantines[lease_id]
        self.pool.free(self._grants.pop(holder, []))
        return self.pool.num_free - num_before

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
        block_ids = self.pool.take(message.num_blocks, BlockState.LEASED)
        if block_ids is None:
            return self._refuse("no_blocks", f"{message.num_blocks} blocks wanted")
        lease = _Lease(new_lease_id(), attempt, holder, block_ids, now + self.lease_s, now)
        self._leases[lease.lease_id] = lease
        self._by_attempt[attempt] = lease.lease_id
        return self._leased(lease)

    def commit(self, message: Commit) -> Committed | KvRefused:
        """Make the first whole blocks of a lease read-only."""
        lease = self._held(message.lease_id, message.worker_id)
        if isinstance(lease, KvRefused):
            return lease
        num_blocks = min(message.num_tokens // self.block_size, len(lease.block_ids))
        self.pool.move(lease.block_ids[lease.num_committed : num_blocks], BlockState.COMMITTED)
        lease.num_committed = max(lease.num_committed, num_blocks)
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
        self._end(lease)
        self.pool.free(lease.block_ids)
        return Released(was_held=True)

    # Grants

    def grant(self, message: Grant) -> Granted:
        """Hand out blocks ahead of need, fewer than asked for when they are short."""
        holder = (message.worker_id, message.worker_epoch)
        self.pool.free(self._take_granted(holder, message.returned))
        if holder not in self._present:
            self.num_late_messages += 1
            return Granted(blocks=Blocks(), num_free_blocks=self.pool.num_free)
        num_blocks = min(message.num_blocks, self.pool.num_free)
        taken = self.pool.take(max(0, num_blocks), BlockState.GRANTED) or []
        if taken:
            self._grants.setdefault(holder, []).extend(taken)
        return Granted(blocks=self.pool.blocks(taken), num_free_blocks=self.pool.num_free)

    # Time

    def sweep(self, now: float) -> dict[LeaseId, Attempt]:
        """End leases that ran out: writable blocks wait in quarantine, committed ones are free."""
        expired = [lease for lease in self._leases.values() if lease.expires_at <= now]
        for lease in expired:
            self._end(lease)
            self.pool.free(lease.block_ids[: lease.num_committed])
            writable = lease.block_ids[lease.num_committed :]
            if writable:
                self.pool.move(writable, BlockState.QUARANTINED)
                self._quarantines[lease.lease_id] = _Quarantine(lease.holder, writable)
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
        held: dict[int, BlockState] = {}
        found = self.pool.problems()
        for lease in self._leases.values():
            for idx, block_id in enumerate(lease.block_ids):
                if block_id in held:
                    found.append(f"block {block_id} is held twice")
                is_committed = idx < lease.num_committed
                held[block_id] = BlockState.COMMITTED if is_committed else BlockState.LEASED
        for granted in self._grants.values():
            held.update(dict.fromkeys(granted, BlockState.GRANTED))
        for quarantine in self._quarantines.values():
            held.update(dict.fromkeys(quarantine.block_ids, BlockState.QUARANTINED))
        found += [
            f"block {block_id} is {self.pool.state(block_id).value}, the books say {state.value}"
            for block_id, state in held.items()
            if self.pool.state(block_id) is not state
        ]
        if len(held) + self.pool.num_free != self.pool.num_blocks:
            found.append(
                f"{len(held)} held + {self.pool.num_free} free of {self.pool.num_blocks} blocks"
            )
        return found

    def _held(self, lease_id: LeaseId, worker_id: WorkerId) -> _Lease | KvRefused:
        lease = self._leases.get(lease_id)
        if lease is None:
            return self._late("expired" if lease_id in self._quarantines else "unknown_lease")
        return lease if lease.holder[0] == worker_id else self._late("not_holder")

    def _end(self, lease: _Lease) -> None:
        del self._leases[lease.lease_id]
        del self._by_attempt[lease.attempt]

    def _grow(self, lease: _Lease, grown: Blocks) -> None:
        entering = self._take_granted(lease.holder, grown)
        self.pool.move(entering, BlockState.LEASED)
        lease.block_ids.extend(entering)

    def _shrink(self, lease: _Lease, num_blocks: int) -> None:
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

    def _leased(self, lease: _Lease) -> Leased:
        return Leased(
            lease_id=lease.lease_id,
            blocks=self.pool.blocks(lease.block_ids),
            lease_ms=int(self.lease_s * 1000),
        )

    def _late(self, reason: RefusalReason) -> KvRefused:
        self.num_late_messages += 1
        return self._refuse(reason, "")

    def _refuse(self, reason: RefusalReason, message: str) -> KvRefused:
        return KvRefused(reason=reason, message=message, num_free_blocks=self.pool.num_free)
