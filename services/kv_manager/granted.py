"""Blocks that decode workers hold ahead of need. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from slipstream.services.kv_manager.pool import BlockPool, BlockState
from slipstream.services.kv_manager.records import Holder
from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.kv import Blocks

# Of the blocks that nobody has, one answer takes at most this part: grants get smaller as the pool
# runs dry, and the last ones don't lie idle at whoever asked first.
_PART = 4
FEW = 2


@dataclass
class GrantBook:
    """Which worker holds which blocks outside of any lease."""

    pool: BlockPool
    _by_holder: dict[Holder, list[int]] = field(default_factory=dict)
    # The number of the last question of each, and what it brought: the answer may get lost.
    _last: dict[Holder, tuple[int, list[int]]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._by_holder.values())

    @property
    def holders(self) -> list[Holder]:
        """The workers that have asked for blocks: those that decode."""
        return list(self._by_holder)

    def num_blocks(self, holder: Holder) -> int:
        """Return how many blocks a worker holds."""
        return len(self._by_holder.get(holder, ()))

    def hand_out(
        self, holder: Holder, num_wanted: int, *, is_short: bool = False, is_pressed: bool = False
    ) -> list[int]:
        """
        Give blocks, fewer than wanted as they get short, at least one while there is one.

        Who can't go on without (`is_short`) gets what there is; while others wait for blocks
        (`is_pressed`) nobody else gets more than the next steps take.
        """
        num_left = self.pool.num_unreserved
        num_most = num_left if is_short else -(-num_left // _PART)
        if is_pressed and not is_short:
            num_most = min(num_most, FEW)
        num_blocks = max(0, min(num_wanted, num_most))
        granted = self._by_holder.setdefault(holder, [])
        taken = self.pool.take(num_blocks, BlockState.GRANTED) or []
        granted.extend(taken)
        return taken

    def remember(self, holder: Holder, number: int, block_ids: list[int]) -> None:
        """Note what a numbered question brought, until the next one shows that it arrived."""
        if number:
            self._last[holder] = (number, block_ids)

    def repeated(self, holder: Holder, number: int) -> list[int] | None:
        """Return what this very question brought, or None for a new one."""
        last_number, block_ids = self._last.get(holder, (0, []))
        return block_ids if number and number == last_number else None

    def take(self, holder: Holder, blocks: Blocks) -> list[int]:
        """Take blocks out of a worker's grant; those it doesn't hold (a repeat) are passed over."""
        granted = self._by_holder.get(holder, [])
        taken = []
        for block_id, generation in zip(blocks.block_ids, blocks.generations, strict=True):
            if block_id in granted and self.pool.is_current(block_id, generation):
                granted.remove(block_id)
                taken.append(block_id)
        return taken

    def take_of(self, worker_id: WorkerId, blocks: Blocks) -> list[int]:
        """Take blocks out of a worker's grants, in whichever epoch it was given them."""
        holders = [each for each in self._by_holder if each[0] == worker_id]
        return [block_id for holder in holders for block_id in self.take(holder, blocks)]

    def end(self, holder: Holder) -> list[int]:
        """Return all blocks of a worker that is gone."""
        self._last.pop(holder, None)
        return self._by_holder.pop(holder, [])
