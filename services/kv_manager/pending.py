"""Prefixes that are being computed: who comes second waits, and finds what the first computed."""

from dataclasses import dataclass, field

from slipstream.services.kv_manager.prefix_index import Prefix
from slipstream.services.kv_manager.records import HeldLease
from slipstream.shared.ids import LeaseId
from slipstream.shared.kv.block_hash import BYTES_PER_TOKEN

# A writer that committed nothing for so long is passed: it is stuck, or its worker is.
STALL_S = 2.0


@dataclass
class PendingPrefixes:
    """
    The next block of each lease that is computing its prompt, by what comes before it.

    One entry a lease is enough. Whoever shares more of the prompt comes by again after each commit;
    whoever differs from there on finds no entry, and goes its own way.
    """

    block_bytes: int  # of a block's packed tokens
    _writers: dict[tuple[Prefix, bytes], HeldLease] = field(default_factory=dict)
    _keys: dict[LeaseId, tuple[Prefix, bytes]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._writers)

    def writer(self, prefix: Prefix | None, tokens: bytes, now: float) -> HeldLease | None:
        """Return who is computing this block right after a prefix, unless it is stuck."""
        if prefix is None or len(tokens) < self.block_bytes:
            return None
        lease = self._writers.get((prefix, tokens))
        if lease is None or now - lease.moved_at > STALL_S:
            return None
        return lease

    def follow(self, lease: HeldLease, now: float) -> None:
        """Take note of the block that a lease computes next, when it began or has committed."""
        self.forget(lease)
        lease.moved_at = now
        first = lease.num_committed * self.block_bytes
        tokens = lease.packed_tokens[first : first + self.block_bytes]
        if lease.prefix is None or len(tokens) < self.block_bytes:
            return
        key = (lease.prefix, tokens)
        # A stuck one may have it still: whoever passed it is waited for now.
        if (passed := self._writers.get(key)) is not None:
            del self._keys[passed.lease_id]
        self._writers[key] = lease
        self._keys[lease.lease_id] = key

    def forget(self, lease: HeldLease) -> None:
        """Have nobody wait for a lease any more."""
        key = self._keys.pop(lease.lease_id, None)
        if key is not None:
            del self._writers[key]

    def num_common_tokens(self, lease: HeldLease, packed_tokens: bytes) -> int:
        """Return how many tokens, in whole blocks, a sequence shares with a writer's prompt."""
        size = self.block_bytes
        mine, others = packed_tokens, lease.packed_tokens
        same = 0
        while len(mine) >= same + size and mine[same : same + size] == others[same : same + size]:
            same += size
        return same // BYTES_PER_TOKEN
