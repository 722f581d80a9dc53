"""The blocks of one host: each in exactly one state, each reuse under a new generation."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Protocol

from slipstream.services.kv_manager.eviction import EvictionOrder
from slipstream.services.kv_manager.prefix_index import IndexedBlock, PrefixIndex
from slipstream.shared.messages.kv import Blocks
from slipstream.shared.messages.packed import PackedInts

NULL_BLOCK = 0  # placeholder for padding in block tables, never handed out
_MAX_GENERATION = 2**32 - 1


class Generations(Protocol):
    """A table of one counter a block, such as a mapped memoryview."""

    def __getitem__(self, block_id: int, /) -> int: ...
    def __setitem__(self, block_id: int, generation: int, /) -> None: ...


class BlockState(Enum):
    """Where a block stands (design section 5)."""

    FREE = "free"
    GRANTED = "granted"  # held by a decode worker ahead of need
    LEASED = "leased"  # one writer
    COMMITTED = "committed"  # read-only, held by leases
    CACHED = "cached"  # committed, held by none, findable
    QUARANTINED = "quarantined"  # its writer was lost and hasn't proved that it stopped

    # Enum's own is Python code, and these are the keys of counts that every block's way changes.
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """The pool at one moment."""

    states: list[BlockState]  # by block, the null block included
    ref_counts: list[int]
    counts: dict[BlockState, int]
    free: list[int]
    num_cached: int  # in the eviction order
    num_reserved: int

    @property
    def num_available(self) -> int:
        """Blocks that could be taken."""
        return len(self.free) + self.num_cached


class BlockPool:
    """
    All blocks and their states. `generations` is the arena's table: readers check it.

    Tails are freed first, so that the head of the free queue holds what was freed longest ago.
    Cached blocks are taken when no block is free, in an order that has each before its parent.
    """

    def __init__(
        self, num_blocks: int, generations: Generations, index: PrefixIndex, order: EvictionOrder
    ) -> None:
        self.num_blocks = num_blocks
        self.generations = generations
        self.index = index
        self._states = [BlockState.FREE] * (num_blocks + 1)
        self._ref_counts = [0] * (num_blocks + 1)  # leases that hold a committed block
        self._counts = dict.fromkeys(BlockState, 0) | {BlockState.FREE: num_blocks}
        self._free = deque(range(NULL_BLOCK + 1, num_blocks + 1))
        self.order = order
        self.num_reserved = 0  # of those that can be taken: promised to somebody

    @property
    def num_free(self) -> int:
        """Blocks without content."""
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Blocks that can be taken now: the free ones, and the cached ones, which are evicted."""
        return len(self._free) + len(self.order)

    @property
    def num_unreserved(self) -> int:
        """Blocks that can be taken now by whoever has been promised none; may be below 0."""
        return self.num_available - self.num_reserved

    def state(self, block_id: int) -> BlockState:
        """Return a block's state."""
        return self._states[block_id]

    def ref_count(self, block_id: int) -> int:
        """Return how many leases hold a committed block."""
        return self._ref_counts[block_id]

    def take(self, num_blocks: int, state: BlockState) -> list[int] | None:
        """
        Take blocks under a new generation, or None when there are too few.

        Free ones first; cached ones are evicted only for want of them.
        """
        if num_blocks > self.num_available:
            return None
        while len(self._free) < num_blocks:
            self._evict(self.order.next_victim())
        taken = [self._free.popleft() for _ in range(num_blocks)]
        for block_id in taken:
            # A generation can't fence memory, but whoever reads checks it.
            self.generations[block_id] = self.generations[block_id] % _MAX_GENERATION + 1
            self._states[block_id] = state
        self._count(BlockState.FREE, state, num_blocks)
        return taken

    def move(self, block_ids: Iterable[int], state: BlockState) -> None:
        """Change the state of blocks that one owner has."""
        for block_id in block_ids:
            assert self._states[block_id] is not BlockState.FREE, f"block {block_id} is free"
            assert not self._is_shared(block_id), f"block {block_id} is read-only"
            self._set(block_id, state)

    def free(self, block_ids: Sequence[int]) -> None:
        """Give back blocks that one owner had, the last first."""
        for block_id in reversed(block_ids):
            assert self._states[block_id] is not BlockState.FREE, f"block {block_id} freed twice"
            assert not self._is_shared(block_id), f"block {block_id} is let go of, never freed"
            self._free_one(block_id)

    def commit(self, block_ids: Iterable[int]) -> None:
        """Make the blocks of one writer read-only; its lease is the first to hold them."""
        num_blocks = 0
        for block_id in block_ids:
            state = self._states[block_id]
            assert state is BlockState.LEASED, f"block {block_id} is {state.value}, not leased"
            self._states[block_id] = BlockState.COMMITTED
            self._ref_counts[block_id] = 1
            num_blocks += 1
        self._count(BlockState.LEASED, BlockState.COMMITTED, num_blocks)

    def hold(self, block_ids: Iterable[int]) -> None:
        """Let one more lease read committed or cached blocks, under the generation they have."""
        num_cached = 0
        for block_id in block_ids:
            assert self._is_shared(block_id), f"block {block_id} can't be shared"
            if self._states[block_id] is BlockState.CACHED:
                self.order.discard(block_id)
                self._states[block_id] = BlockState.COMMITTED
                num_cached += 1
            self._ref_counts[block_id] += 1
        self._count(BlockState.CACHED, BlockState.COMMITTED, num_cached)

    def count_hits(self, blocks: Iterable[IndexedBlock]) -> None:
        """Note that a lease found blocks which it holds: they are worth more than others."""
        for block in blocks:
            self.order.hit(block.block_id, block.block_hash)

    def let_go(self, block_ids: Sequence[int]) -> None:
        """End one lease's hold on committed blocks; of the last hold what is findable stays."""
        for block_id in block_ids:
            if not self.order.knows(block_id) and block_id in self.index:
                parent_id = next(self.index.ancestors(block_id), None)
                self.order.written(block_id, self.index.hash_of(block_id), parent_id)
        for block_id in reversed(block_ids):
            state = self._states[block_id]
            assert state is BlockState.COMMITTED, f"block {block_id} is {state.value}, not held"
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                self._cache_or_free(block_id)
        self._keep_ancestors(block_ids)

    def victims(self) -> Iterator[int]:
        """Yield the cached blocks in the order in which they will be evicted."""
        return iter(self.order)

    def blocks(self, block_ids: Sequence[int]) -> Blocks:
        """Return the ids with their generations."""
        return Blocks(
            PackedInts(block_ids), PackedInts(self.generations[block_id] for block_id in block_ids)
        )

    def is_current(self, block_id: int, generation: int) -> bool:
        """Tell whether a block is still in the generation it was handed out in."""
        return 0 < block_id <= self.num_blocks and self.generations[block_id] == generation

    def counts(self) -> dict[BlockState, int]:
        """Return how many blocks are in each state, in a time that doesn't grow with the pool."""
        return dict(self._counts)

    def snapshot(self) -> PoolSnapshot:
        """Return what an audit compares, copied: that takes no more than a millisecond or two."""
        return PoolSnapshot(
            states=self._states[:],
            ref_counts=self._ref_counts[:],
            counts=self.counts(),
            free=list(self._free),
            num_cached=len(self.order),
            num_reserved=self.num_reserved,
        )

    def problems_of(self, block_id: int) -> list[str]:
        """Return what contradicts itself about one block."""
        state = self._states[block_id]
        found = []
        if (self._ref_counts[block_id] > 0) != (state is BlockState.COMMITTED):
            found.append(f"{self._ref_counts[block_id]} leases hold block {block_id} ({state})")
        if state is BlockState.CACHED and block_id not in self.index:
            found.append(f"block {block_id} is cached and can't be found")
        if block_id in self.index and not self._is_shared(block_id):
            found.append(f"block {block_id} can be found and is {state.value}")
        return found

    def _is_shared(self, block_id: int) -> bool:
        return self._states[block_id] in (BlockState.COMMITTED, BlockState.CACHED)

    def _free_one(self, block_id: int) -> None:
        self._set(block_id, BlockState.FREE)
        self._free.append(block_id)

    def _cache_or_free(self, block_id: int) -> None:
        if block_id in self.index:
            self._set(block_id, BlockState.CACHED)
            self.order.add(block_id)
        else:
            self._free_one(block_id)

    def _keep_ancestors(self, block_ids: Sequence[int]) -> None:
        """
        Count the last findable block and all before it as used now.

        They may be others than the lease's own: those of whoever committed the same tokens first.
        """
        last = next((each for each in reversed(block_ids) if each in self.index), None)
        if last is not None:
            self.order.keep(chain([last], self.index.ancestors(last)))

    def _evict(self, block_id: int) -> None:
        """
        Drop a cached block's content.

        Cached blocks after it are gone by then, being before it in the order. Of those that leases
        hold none can be found without it: they are free as soon as their leases end.
        """
        for removed in self.index.remove(block_id):
            if removed in self.order:
                self._free_one(removed)
            self.order.forget(removed)

    def _set(self, block_id: int, state: BlockState) -> None:
        self._count(self._states[block_id], state, 1)
        self._states[block_id] = state

    def _count(self, before: BlockState, after: BlockState, num_blocks: int) -> None:
        self._counts[before] -= num_blocks
        self._counts[after] += num_blocks
