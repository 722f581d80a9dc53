"""The blocks of one host: each in exactly one state, each reuse under a new generation."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Protocol

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


class BlockPool:
    """
    All blocks and their states. `generations` is the arena's table: readers check it.

    Tails are freed first, so that the head of the free queue holds what was freed longest ago.
    """

    def __init__(self, num_blocks: int, generations: Generations) -> None:
        self.num_blocks = num_blocks
        self.generations = generations
        self._states = [BlockState.FREE] * (num_blocks + 1)
        self._counts = dict.fromkeys(BlockState, 0) | {BlockState.FREE: num_blocks}
        self._free = deque(range(NULL_BLOCK + 1, num_blocks + 1))

    @property
    def num_free(self) -> int:
        """Blocks that can be taken now."""
        return len(self._free)

    def state(self, block_id: int) -> BlockState:
        """Return a block's state."""
        return self._states[block_id]

    def take(self, num_blocks: int, state: BlockState) -> list[int] | None:
        """Take free blocks under a new generation, or None when there are too few."""
        if num_blocks > len(self._free):
            return None
        taken = [self._free.popleft() for _ in range(num_blocks)]
        for block_id in taken:
            # A generation can't fence memory, but whoever reads checks it.
            self.generations[block_id] = self.generations[block_id] % _MAX_GENERATION + 1
            self._set(block_id, state)
        return taken

    def move(self, block_ids: Iterable[int], state: BlockState) -> None:
        """Change the state of blocks that are in use."""
        for block_id in block_ids:
            assert self._states[block_id] is not BlockState.FREE, f"block {block_id} is free"
            self._set(block_id, state)

    def free(self, block_ids: Sequence[int]) -> None:
        """Give blocks back, the last first."""
        for block_id in reversed(block_ids):
            assert self._states[block_id] is not BlockState.FREE, f"block {block_id} freed twice"
            self._set(block_id, BlockState.FREE)
            self._free.append(block_id)

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

    def problems(self) -> list[str]:
        """Return what contradicts itself; empty when the books are right."""
        found = []
        counted = Counter(self._states[NULL_BLOCK + 1 :])
        if any(counted[state] != number for state, number in self._counts.items()):
            found.append("blocks were counted wrong by state")
        if self.counts()[BlockState.FREE] != len(self._free):
            found.append(f"{len(self._free)} blocks queue as free, the states say otherwise")
        if len(set(self._free)) != len(self._free):
            found.append("a block queues as free twice")
        return found

    def _set(self, block_id: int, state: BlockState) -> None:
        self._counts[self._states[block_id]] -= 1
        self._counts[state] += 1
        self._states[block_id] = state
