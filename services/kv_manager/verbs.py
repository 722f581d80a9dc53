"""Which method of the lease book serves which message."""

from functools import partial
from typing import assert_never

from slipstream.services.kv_manager.leases import LeaseBook
from slipstream.services.kv_manager.pool import BlockState
from slipstream.services.kv_manager.slices import Sliced
from slipstream.shared.ids import HostId
from slipstream.shared.messages.common import Message
from slipstream.shared.messages.kv import (
    Adopt,
    Adopted,
    Audit,
    Audited,
    Commit,
    Grant,
    Known,
    KvRefused,
    KvRequest,
    Lease,
    Leased,
    Match,
    Pull,
    Release,
    Renew,
)


class KvVerbs:
    """The manager as a plain object: a message in, its answer out."""

    def __init__(self, book: LeaseBook, layout: str, host_id: HostId, epoch: int) -> None:
        self._book = book
        self._layout = layout
        self._host_id = host_id
        self._epoch = epoch

    # One case a verb: a table of handlers would hide what each takes.
    def answer(self, message: KvRequest, now: float) -> Message:  # noqa: C901, PLR0911
        """Serve one message at a monotonic time in seconds."""
        match message:
            case Lease() | Match() if message.layout != self._layout:
                return self._incompatible(message.layout)
            case Pull() if message.origin.layout != self._layout:
                return self._incompatible(message.origin.layout)
            case Match():
                return self._book.match(message, now)
            case Lease():
                return self._book.lease(message, now)
            case Commit():
                return self._book.commit(message, now)
            case Adopt():
                return self._book.adopt(message, now)
            case Renew():
                return self._book.renew(message, now)
            case Release():
                return self._book.release(message, now)
            case Grant():
                return self._book.grant(message, now)
            case Audit() | Pull() | Known():
                raise AssertionError("the host answers these")
            case _:
                assert_never(message)

    def _incompatible(self, layout: str) -> KvRefused:
        return KvRefused(
            reason="incompatible",
            message=f"this host keeps KV as ({self._layout}), you as ({layout})",
        )

    def audit(self, message: Audit, now: float) -> Sliced[Audited]:
        """
        Describe the books as they are at the first slice.

        Only what it says of the prefix index and the order of eviction is looked at later.
        """
        counts = self._book.pool.counts()
        leases = self._book.table.summaries(now)
        described = partial(
            Audited,
            host_id=self._host_id,
            epoch=self._epoch,
            num_blocks=self._book.pool.num_blocks,
            num_free=counts[BlockState.FREE],
            num_granted=counts[BlockState.GRANTED],
            num_leased=counts[BlockState.LEASED],
            num_committed=counts[BlockState.COMMITTED],
            num_cached=counts[BlockState.CACHED],
            num_quarantined=counts[BlockState.QUARANTINED],
            num_reserved=self._book.pool.num_reserved,
            num_indexed=len(self._book.prefixes.index),
            num_leases=len(leases),
            num_late_messages=self._book.num_late_messages,
            oldest_lease_ms=int(self._book.table.oldest_s(now) * 1000),
            leases=leases if message.with_leases else [],
        )
        return described(problems=(yield from self._book.integrity_problems()))


def num_blocks_of(answer: Message) -> int | None:
    """Return the number of blocks that an answer speaks of, for the trace."""
    match answer:
        case Leased() | Adopted():
            return len(answer.blocks.block_ids)
        case _:
            return None
