"""What leases and commits mean to the prefix index."""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.services.kv_manager.prefix_index import (
    IndexedBlock,
    PartBlock,
    Prefix,
    PrefixIndex,
    PrefixRoot,
)
from slipstream.shared.kv.block_hash import BYTES_PER_TOKEN, PrefixKeys, full_blocks
from slipstream.shared.messages.kv import Commit, Lease, Match

# Of a block: less than that is computed as soon as copied.
_MIN_PART = 4


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The blocks found for a sequence, in order, and where its next one would hang."""

    blocks: list[IndexedBlock]
    end: Prefix | None  # None: nothing of this sequence is to become findable
    part: PartBlock | None = None  # whose first tokens come next

    @property
    def block_ids(self) -> list[int]:
        """The blocks to share."""
        return [block.block_id for block in self.blocks]

    def num_tokens(self, block_size: int) -> int:
        """Return how many positions need no computing, those to be copied included."""
        return len(self.blocks) * block_size + (self.part.num_tokens if self.part else 0)


class PrefixCache:
    """Finds what is known of a sequence and adds what was committed; off, it does neither."""

    def __init__(self, index: PrefixIndex, block_size: int, *, is_on: bool = True) -> None:
        self.index = index
        self._block_size = block_size
        self._block_bytes = block_size * BYTES_PER_TOKEN
        self._is_on = is_on
        self.num_lookups = 0
        self.num_looked_up_tokens = 0
        self.num_cached_tokens = 0

    @property
    def num_evicted_blocks(self) -> int:
        """Blocks that were found no more since the start, for want of room."""
        return self.index.num_removed

    def find(self, message: Lease | Match) -> CachedPrefix:
        """
        Return the longest known prefix of a sequence.

        It ends before the last token: that one is always computed, for its logits are wanted.
        """
        if not self._is_on:
            return CachedPrefix([], None)
        root = self._root(message)
        packed = message.token_ids.to_bytes()
        found = self.index.find(root, self._wanted(message, packed), self._block_bytes)
        end = found[-1] if found else root
        first = len(found) * self._block_bytes
        rest = packed[first : min(len(packed) - BYTES_PER_TOKEN, first + self._block_bytes)]
        part = self.index.part(end, rest)
        if part is not None and part.num_tokens * _MIN_PART < self._block_size:
            part = None
        return CachedPrefix(found, end, part)

    def chain_in(self, index: PrefixIndex, message: Lease | Match) -> list[IndexedBlock]:
        """Return the longest prefix of a sequence that another index knows."""
        if not self._is_on:
            return []
        wanted = self._wanted(message, message.token_ids.to_bytes())
        return index.find(self._root(message), wanted, self._block_bytes)

    def _root(self, message: Lease | Match) -> PrefixRoot:
        return self.index.root(
            PrefixKeys(
                layout=message.layout,
                model=message.model_fingerprint,
                numerics=message.numerics,
                cache_salt=message.cache_salt,
                adapter=message.adapter,
            )
        )

    def _wanted(self, message: Lease | Match, packed: bytes) -> bytes:
        """Return the packed tokens of the blocks that may be shared."""
        num_blocks = max(0, len(packed) - BYTES_PER_TOKEN) // self._block_bytes
        if isinstance(message, Lease):
            num_blocks = min(num_blocks, max(0, message.num_blocks))
        return packed[: num_blocks * self._block_bytes]

    def count(self, message: Lease, cached: CachedPrefix) -> None:
        """Count what a lease that was given found."""
        if self._is_on and message.token_ids:
            self.num_lookups += 1
            self.num_looked_up_tokens += len(message.token_ids)
            self.num_cached_tokens += len(cached.blocks) * self._block_size

    def extend(
        self, prefix: Prefix | None, block_ids: Sequence[int], message: Commit, first_idx: int
    ) -> Prefix | None:
        """
        Make newly committed blocks findable, the first of them at an index of its lease.

        A block whose content another one has already stays outside: the first is kept. Return what
        the next block comes after, None when this lease has lost its place: its tokens weren't all
        told, or a block before it was evicted.
        """
        first_told = message.num_tokens - len(message.token_ids)
        num_known = first_idx * self._block_size - first_told  # told again
        if first_told < 0 or num_known < 0:
            return None
        if prefix is None or not self.index.is_known(prefix):
            return None
        blocks = full_blocks(message.token_ids[num_known:], self._block_size)
        return self.index.extend(prefix, block_ids, blocks)
