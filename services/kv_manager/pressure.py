"""Who gives blocks back when they run out. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from slipstream.services.kv_manager.granted import GrantBook
from slipstream.services.kv_manager.lease_table import LeaseTable
from slipstream.services.kv_manager.records import HeldLease, Holder
from slipstream.shared.ids import LeaseId
from slipstream.shared.messages.kv import Reclaim, Reclaimed

# Whoever was refused asks again sooner than that (leases every 0.2 s), or has given up.
_ASKS_AGAIN_S = 0.5


def gives_way(short: HeldLease, leases: Iterable[HeldLease]) -> HeldLease | None:
    """
    Return whose sequence is to give way to one that can't go on.

    The newest of the lowest priority on the whole host, so that workers that are all stuck don't
    wait for each other; None when that one is with the same worker, which sees to it itself.
    """
    last = min(leases, key=lambda each: each.rank, default=short)
    return last if last.rank < short.rank and last.holder != short.holder else None


@dataclass
class Pressure:
    """Who was refused blocks lately, and what is asked of whom for that."""

    grants: GrantBook
    table: LeaseTable
    refused_at: float = float("-inf")
    on_refused: Callable[[], None] = lambda: None  # has whoever reclaims begin a round
    _asking: dict[Holder, LeaseId | None] = field(default_factory=dict)
    _unable: set[LeaseId] = field(default_factory=set)

    def is_on(self, now: float) -> bool:
        """Somebody waits for blocks."""
        return now - self.refused_at < _ASKS_AGAIN_S

    def refused(self, holder: Holder, short_lease_id: LeaseId | None, now: float) -> None:
        """Note a worker that got no blocks, and its sequence that can't go on without."""
        self.refused_at = now
        # One that waits for a prompt's blocks must not hide that another can't go on.
        self._asking[holder] = short_lease_id or self._asking.get(holder)
        self.on_refused()

    def reclaims(self) -> list[Reclaim]:
        """Return what to ask of whom, for those refused since the last time."""
        asking, self._asking = self._asking, {}
        if not asking:
            return []
        grants, leases = self.grants, self.table.leases
        idle = {each: grants.num_blocks(each) for each in grants.holders if each not in asking}
        wanted = [
            Reclaim(worker_id=holder[0], num_blocks=number)
            for holder, number in idle.items()
            if number > 0
        ]
        # Blocks that are free by now may be all that is wanted.
        if grants.pool.num_unreserved > 0:
            return wanted
        decoders = set(grants.holders)
        running = [
            each
            for each in leases.values()
            if each.holder in decoders and each.lease_id not in self._unable
        ]
        self._unable &= leases.keys()
        for lease_id in asking.values():
            short = leases.get(lease_id) if lease_id is not None else None
            victim = gives_way(short, running) if short is not None else None
            if victim is not None:
                wanted.append(
                    Reclaim(
                        worker_id=victim.holder[0],
                        num_blocks=0,
                        preempt_request_id=victim.attempt[0],
                        preempt_attempt=victim.attempt[1],
                    )
                )
                break  # one at a time: its blocks may be enough for all
        return wanted

    def reclaimed(self, asked: Reclaim, answer: Reclaimed) -> None:
        """Free what a worker gave back; name a sequence that can't give way no more."""
        pool = self.grants.pool
        pool.free(self.grants.take_of(answer.worker_id, answer.blocks))
        if answer.is_unable and asked.preempt_request_id is not None:
            named = self.table.of_attempt((asked.preempt_request_id, asked.preempt_attempt))
            if named is not None:
                self._unable.add(named.lease_id)
