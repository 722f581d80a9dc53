"""Who holds which blocks, as the lease book writes it down."""

from dataclasses import dataclass

from slipstream.services.kv_manager.prefix_index import PartBlock, Prefix
from slipstream.shared.ids import LeaseId, RequestId, WorkerId

Holder = tuple[WorkerId, int]  # a worker in one of its epochs
Attempt = tuple[RequestId, int]
Rank = tuple[int, float]  # priority, then who came first: the greater is the more important


@dataclass(slots=True)
class HeldLease:
    """The blocks of an attempt: those found in the prefix cache first, the granted ones last."""

    lease_id: LeaseId
    attempt: Attempt
    holder: Holder
    block_ids: list[int]
    expires_at: float
    since: float
    num_committed: int = 0  # block_ids[:num_committed] are COMMITTED, the rest LEASED
    num_cached: int = 0  # block_ids[:num_cached] were found when the lease began
    prefix: Prefix | None = None  # what the next block comes after; None: no more are findable
    packed_tokens: bytes = b""  # what it computes
    moved_at: float = 0.0  # when it began or committed last
    num_reserved: int = 0  # blocks that it has been promised and doesn't have yet
    copied: PartBlock | None = None  # what its holder may be copying from
    rank: Rank = (0, 0.0)
    num_pulls: int = 0  # transfers that write into its blocks
    was_pulled: bool = False  # not computed, or not all of it

    @property
    def read_ids(self) -> list[int]:
        """The blocks that it reads, maybe with others."""
        copied = [] if self.copied is None else [self.copied.block_id]
        return self.block_ids[: self.num_committed] + copied

    @property
    def writable_ids(self) -> list[int]:
        """The blocks that it alone writes."""
        return self.block_ids[self.num_committed :]


@dataclass(slots=True)
class Quarantine:
    """
    Blocks of a lease that is over, into which somebody may still write.

    Its holder, until it is proved that it stopped, and transfers, until they have ended.
    """

    holder: Holder
    block_ids: list[int]
    is_proved: bool = False
    num_pulls: int = 0

    @property
    def is_over(self) -> bool:
        """Nobody writes into the blocks any more."""
        return self.is_proved and self.num_pulls == 0
