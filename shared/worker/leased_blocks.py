"""The blocks of a sequence that are leased, as far as they have been handed out."""

from dataclasses import dataclass, field
from typing import Self

from slipstream.shared.ids import LeaseId
from slipstream.shared.kv.arena import Arena
from slipstream.shared.messages.kv import BlockCopy, Blocks, Leased


@dataclass(eq=False)
class LeasedBlocks:
    """A lease and its block table; `block_ids` and `generations` grow together."""

    lease_id: LeaseId
    block_ids: list[int]
    generations: list[int]
    block_size: int
    num_cached_tokens: int  # positions that need no computing
    num_reserved: int = 0  # blocks that are promised and come with the commits
    arrived: list[tuple[int, int]] = field(default_factory=list)  # ids and generations

    @classmethod
    def of(cls, leased: Leased, block_size: int) -> Self:
        """Take the manager's answer over."""
        return cls(
            leased.lease_id,
            list(leased.blocks.block_ids),
            list(leased.blocks.generations),
            block_size,
            leased.num_cached_tokens,
            leased.num_reserved_blocks,
        )

    @property
    def num_slots(self) -> int:
        """Positions that there are blocks for."""
        return len(self.block_ids) * self.block_size

    @property
    def num_cached_in_blocks(self) -> int:
        """Positions in whole blocks that others may read too."""
        return self.num_cached_tokens // self.block_size * self.block_size

    @property
    def num_known(self) -> int:
        """Blocks that the manager has told us of."""
        return len(self.block_ids) + len(self.arrived)

    def take(self, blocks: Blocks) -> None:
        """Take blocks that were promised; they enter the table between two steps."""
        self.arrived += zip(blocks.block_ids, blocks.generations, strict=True)

    def absorb(self) -> None:
        """Let what has arrived enter the table. Between two steps: they read it on their thread."""
        self.num_reserved -= len(self.arrived)
        self.block_ids += (block_id for block_id, _ in self.arrived)
        self.generations += (generation for _, generation in self.arrived)
        self.arrived = []

    def copy(self, arena: Arena, copy: BlockCopy) -> None:
        """
        Begin the first block that isn't cached with a copy of another's first tokens.

        Of a block that isn't in the generation told any more nothing is used.
        """
        size = arena.block_bytes
        to_id = self.block_ids[self.num_cached_tokens // self.block_size]
        source = arena.blocks[copy.block_id * size : (copy.block_id + 1) * size]
        arena.blocks[to_id * size : (to_id + 1) * size] = source
        if arena.generations[copy.block_id] == copy.generation:
            self.num_cached_tokens += copy.num_tokens
