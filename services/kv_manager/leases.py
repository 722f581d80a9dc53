"""
Leases, grants and quarantine: who may write which block. Pure: time and messages come in as values.

A lease belongs to (request, attempt) and has one holder, a (worker, epoch). Everything that arrives
late or twice is counted and answered, never asserted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from slipstream.services.kv_manager.claims import Claims, rank_of
from slipstream.services.kv_manager.granted import GrantBook
from slipstream.services.kv_manager.lease_table import LeaseTable
from slipstream.services.kv_manager.pending import PendingPrefixes
from slipstream.services.kv_manager.pool import BlockPool, BlockState
from slipstream.services.kv_manager.prefix_cache import CachedPrefix, PrefixCache
from slipstream.services.kv_manager.prefix_index import PartBlock
from slipstream.services.kv_manager.pressure import Pressure
from slipstream.services.kv_manager.records import Attempt, HeldLease, Holder, Quarantine
from slipstream.services.kv_manager.slices import Sliced, finish
from slipstream.shared.ids import LeaseId, WorkerId, new_lease_id
from slipstream.shared.kv.block_hash import BYTES_PER_TOKEN
from slipstream.shared.messages.kv import (
    Adopt,
    Adopted,
    BlockCopy,
    Blocks,
    Commit,
    Committed,
    Grant,
    Granted,
    KvRefused,
    Lease,
    Leased,
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
    table: LeaseTable = field(default_factory=LeaseTable)
    _tombstones: dict[Attempt, float] = field(default_factory=dict)  # until when
    _present: set[Holder] = field(default_factory=set)  # processes that can prove their end
    # Hears which lease has committed or ended: others may wait for it.
    on_moved: Callable[[LeaseId], None] = lambda _lease_id: None

    def __post_init__(self) -> None:
        self.grants = GrantBook(self.pool)
        self.pending = PendingPrefixes(self.block_size * BYTES_PER_TOKEN)
        self.pressure = Pressure(self.grants, self.table)
        self.claims = Claims()

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
        self.claims.forget_all_of(holder)
        num_before = self.pool.num_available
        for lease in self.table.of_holder(holder):
            self._end(lease, is_proved=True)
        for block_ids in self.table.proved_gone(holder):
            self.pool.free(block_ids)
        self.pool.free(self.grants.end(holder))
        return self.pool.num_available - num_before

    # Leases

    def lease(self, message: Lease, now: float) -> Leased | KvRefused:
        """Hold blocks for an attempt; a repeat is answered like the first."""
        holder = (message.worker_id, message.worker_epoch)
        attempt = (message.request_id, message.attempt)
        refusal = self._never(message, holder)
        if refusal is not None:
            return refusal
        known = self.table.of_attempt(attempt)
        if known is not None:
            return self._again(known, holder, now)
        cached = self.prefixes.find(message)
        if message.is_patient and self._writer(cached, message.token_ids.to_bytes(), now):
            return self._refuse("pending", "a prefix of these tokens is being computed")
        lease = self._begin(message, cached, now)
        if lease is None:
            self.pressure.refused(holder, None, now)
            self.claims.refused(message, len(cached.blocks), now)
            return self._refuse("no_blocks", f"{message.num_blocks} blocks wanted")
        self.claims.forget(attempt)
        return self._leased(lease)

    def _again(self, lease: HeldLease, holder: Holder, now: float) -> Leased | KvRefused:
        if lease.holder != holder:
            return self._refuse("not_holder", f"{lease.holder[0]} holds this attempt")
        if lease.expires_at <= now:
            return self._late("expired")  # the sweeper just hasn't come by
        # Its holder counts from this answer on.
        lease.expires_at = now + self.lease_s
        return self._leased(lease)

    def _never(self, message: Lease, holder: Holder) -> KvRefused | None:
        """Return why an attempt can't have a lease, however long it waits."""
        if (message.request_id, message.attempt) in self._tombstones:
            return self._refuse("cancelled", "this attempt was cancelled")
        if holder not in self._present:
            return self._late("stale_epoch")
        if message.num_blocks > self.pool.num_blocks:
            return self._refuse(
                "too_large", f"{message.num_blocks} blocks wanted of {self.pool.num_blocks}"
            )
        return None

    def match(self, message: Match, now: float) -> Matched:
        """Tell how much a lease of these tokens would find; nothing is held by asking."""
        cached = self.prefixes.find(message)
        packed = message.token_ids.to_bytes()
        writer = self._writer(cached, packed, now)
        num_pending = 0
        if writer is not None:
            num_pending = self.pending.num_common_tokens(writer, packed)
        return Matched(
            num_cached_tokens=cached.num_tokens(self.block_size), num_pending_tokens=num_pending
        )

    def awaited(self, message: Lease | Match, now: float) -> LeaseId | None:
        """Return the lease that is computing what these tokens lack, if any is."""
        cached = self.prefixes.find(message)
        writer = self._writer(cached, message.token_ids.to_bytes(), now)
        return writer.lease_id if writer is not None else None

    def commit(self, message: Commit, now: float) -> Committed | KvRefused:
        """Make the first whole blocks of a lease read-only, and findable by their tokens."""
        lease = self._held(message.lease_id, message.worker_id)
        if isinstance(lease, KvRefused):
            return lease
        if lease.num_pulls:
            return self._refuse("not_writable", "a transfer is filling its blocks")
        self._grow(lease, message.grown)
        self._end_copy(lease)
        first = lease.num_committed
        num_blocks = min(message.num_tokens // self.block_size, len(lease.block_ids))
        new = lease.block_ids[first:num_blocks]
        if new:
            self.pool.commit(new)
            lease.prefix = self.prefixes.extend(lease.prefix, new, message, first)
            lease.num_committed = num_blocks
            self.pending.follow(lease, now)
            self.on_moved(lease.lease_id)
        self._hand_out(lease, message.num_wanted_blocks)
        behind = lease.block_ids[message.num_known_blocks :] if message.num_wanted_blocks else []
        return Committed(num_blocks=lease.num_committed, blocks=self.pool.blocks(behind))

    def adopt(self, message: Adopt, now: float) -> Adopted | KvRefused:
        """Pass a lease with its right to write to another worker, in one step."""
        lease = self.table.leases.get(message.lease_id)
        if lease is None:
            return self._late(
                "expired" if message.lease_id in self.table.quarantines else "unknown_lease"
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
        self._end_copy(lease)
        self._unreserve(lease)
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
            lease = self.table.leases.get(renewal.lease_id)
            if lease is None or lease.holder != holder:
                lost.append(renewal.lease_id)
                continue
            lease.expires_at = now + self.lease_s
            self._grow(lease, renewal.grown)
        return Renewed(lease_ms=int(self.lease_s * 1000), lost=lost)

    def release(self, message: Release, now: float) -> Released:
        """End a lease; from its holder also the proof that nothing writes into its blocks."""
        if message.is_tombstone:
            self.claims.forget((message.request_id, message.attempt))
            self._tombstones[message.request_id, message.attempt] = now + 2 * self.lease_s
        if message.worker_id is None:
            return Released(was_held=False)
        # Also when the lease itself is lost: the sequence's other blocks have no other way back.
        self.pool.free(self.grants.take_of(message.worker_id, message.grown))
        attempt = (message.request_id, message.attempt)
        # A worker whose lease was never answered names only the attempt.
        lease_id = message.lease_id or self.table.by_attempt.get(attempt, LeaseId(""))
        proved = self.table.proved(lease_id, message.worker_id)
        if proved is not None:
            self.pool.free(proved)
            return Released(was_held=True)
        lease = self.table.leases.get(lease_id)
        if lease is None or lease.holder[0] != message.worker_id:
            self.num_late_messages += 1
            return Released(was_held=False)
        self._end(lease, is_proved=True)
        return Released(was_held=True)

    # Grants

    def grant(self, message: Grant, now: float) -> Granted:
        """Hand out blocks ahead of need, fewer than asked for when they are short."""
        holder = (message.worker_id, message.worker_epoch)
        self.pool.free(self.grants.take(holder, message.returned))
        if holder not in self._present:
            self.num_late_messages += 1
            return Granted(blocks=Blocks(), num_free_blocks=self.num_free)
        repeated = self.grants.repeated(holder, message.number)
        if repeated is not None:
            return Granted(blocks=self.pool.blocks(repeated), num_free_blocks=self.num_free)
        taken = self.grants.hand_out(
            holder,
            message.num_blocks,
            is_short=message.short_lease_id is not None,
            is_pressed=self.pressure.is_on(now),
        )
        self.grants.remember(holder, message.number, taken)
        if message.num_blocks > 0 and not taken:
            self.pressure.refused(holder, message.short_lease_id, now)
        return Granted(blocks=self.pool.blocks(taken), num_free_blocks=self.num_free)

    # Time

    def sweep(self, now: float) -> dict[LeaseId, Attempt]:
        """End leases that ran out: what they alone write is quarantined, the rest let go of."""
        self.claims.sweep(now)
        expired = self.table.expired(now)
        for lease in expired:
            self._end(lease, is_proved=False)
        for attempt in [a for a, until in self._tombstones.items() if until <= now]:
            del self._tombstones[attempt]
        return {lease.lease_id: lease.attempt for lease in expired}

    @property
    def num_free(self) -> int:
        """Blocks that whoever asks now can have."""
        return max(0, self.pool.num_unreserved)

    def check_integrity(self) -> list[str]:
        """Compare the books with the block states; empty when all blocks are accounted for."""
        return finish(self.integrity_problems())

    def integrity_problems(self) -> Sliced[list[str]]:
        """Do the same in slices, for a process that serves others meanwhile."""
        return self.table.problems(self.pool, iter(self.grants))

    def _held(self, lease_id: LeaseId, worker_id: WorkerId) -> HeldLease | KvRefused:
        lease = self.table.leases.get(lease_id)
        if lease is None:
            return self._late("expired" if lease_id in self.table.quarantines else "unknown_lease")
        return lease if lease.holder[0] == worker_id else self._late("not_holder")

    def _begin(self, message: Lease, cached: CachedPrefix, now: float) -> HeldLease | None:
        """Make a lease of the blocks that are cached and of fresh ones, or None without enough."""
        num_fresh = message.num_blocks - len(cached.blocks)
        lease = HeldLease(
            lease_id=new_lease_id(),
            attempt=(message.request_id, message.attempt),
            holder=(message.worker_id, message.worker_epoch),
            block_ids=cached.block_ids,
            expires_at=now + self.lease_s,
            since=now,
            num_committed=len(cached.blocks),
            num_cached=len(cached.blocks),
            prefix=cached.end,
            packed_tokens=message.token_ids.to_bytes(),
            copied=cached.part if num_fresh > 0 else None,
            rank=rank_of(message, now),
        )
        num_needed = num_fresh + message.num_spare_blocks
        num_needed += self.claims.num_kept_from(lease.attempt, lease.rank, now)
        # Held before any are taken, or they might be evicted for it.
        self.pool.hold(lease.read_ids)
        if num_needed > self.pool.num_unreserved:
            self._end_copy(lease)  # a block that is copied from may be the one that is missing
        if num_needed > self.pool.num_unreserved:
            self.pool.let_go(lease.read_ids)
            return None
        self.pool.count_hits(cached.blocks)
        self.prefixes.count(message, cached)
        lease.num_reserved = max(0, num_fresh)
        self.pool.num_reserved += lease.num_reserved
        num_first = num_fresh if message.num_first_blocks is None else message.num_first_blocks
        self._hand_out(lease, len(lease.block_ids) + num_first)
        self.table.add(lease)
        self.pending.follow(lease, now)
        return lease

    def _hand_out(self, lease: HeldLease, num_wanted: int) -> None:
        """Give a lease of the blocks that it was promised, until it has as many as it wants."""
        num_blocks = min(num_wanted - len(lease.block_ids), lease.num_reserved)
        if num_blocks <= 0:
            return
        taken = self.pool.take(num_blocks, BlockState.LEASED)
        assert taken is not None, "promised blocks are there"
        lease.block_ids.extend(taken)
        lease.num_reserved -= num_blocks
        self.pool.num_reserved -= num_blocks

    def _unreserve(self, lease: HeldLease) -> None:
        self.pool.num_reserved -= lease.num_reserved
        lease.num_reserved = 0

    def _end_copy(self, lease: HeldLease) -> None:
        """Let go of the block that was copied from: its holder is past that."""
        if lease.copied is not None:
            self.pool.let_go([lease.copied.block_id])
            lease.copied = None

    def _end(self, lease: HeldLease, *, is_proved: bool) -> None:
        """
        End a lease: let go of what is committed, and of the rest as soon as nobody can write there.

        `is_proved` says that its holder can't.
        """
        self.table.remove(lease)
        self.pending.forget(lease)
        self._unreserve(lease)
        self._end_copy(lease)
        self.pool.let_go(lease.read_ids)
        writable = lease.writable_ids
        if is_proved and lease.num_pulls == 0:
            self.pool.free(writable)
        elif writable:
            self.pool.move(writable, BlockState.QUARANTINED)
            self.table.quarantines[lease.lease_id] = Quarantine(
                lease.holder, writable, is_proved, lease.num_pulls
            )
        self.on_moved(lease.lease_id)

    def _grow(self, lease: HeldLease, grown: Blocks) -> None:
        entering = self.grants.take(lease.holder, grown)
        self.pool.move(entering, BlockState.LEASED)
        lease.block_ids.extend(entering)

    def _writer(self, cached: CachedPrefix, packed_tokens: bytes, now: float) -> HeldLease | None:
        size = self.pending.block_bytes
        first = len(cached.blocks) * size
        # The last token is computed by whoever wants its logits: a block that ends there is, too.
        if first + size > len(packed_tokens) - BYTES_PER_TOKEN:
            return None
        return self.pending.writer(cached.end, packed_tokens[first : first + size], now)

    def _leased(self, lease: HeldLease) -> Leased:
        return Leased(
            lease_id=lease.lease_id,
            blocks=self.pool.blocks(lease.block_ids),
            lease_ms=int(self.lease_s * 1000),
            num_cached_tokens=lease.num_cached * self.block_size,
            num_reserved_blocks=lease.num_reserved,
            copy=self._copy(lease.copied) if lease.copied is not None else None,
        )

    def _copy(self, part: PartBlock) -> BlockCopy:
        return BlockCopy(part.block_id, self.pool.generations[part.block_id], part.num_tokens)

    def _late(self, reason: RefusalReason) -> KvRefused:
        self.num_late_messages += 1
        return self._refuse(reason, "")

    def _refuse(self, reason: RefusalReason, message: str) -> KvRefused:
        return KvRefused(reason=reason, message=message, num_free_blocks=self.num_free)
