"""Which prefixes lie in the file of the second tier, and in which of its slots. Pure."""

from collections.abc import Iterable, Sequence

from slipstream.services.kv_manager.eviction import LruOrder
from slipstream.services.kv_manager.prefix_index import (
    IndexedBlock,
    Prefix,
    PrefixIndex,
    PrefixRoot,
)
from slipstream.shared.kv.block_hash import BlockHasher


class SpilledPrefixes:
    """
    A tree of prefixes as in memory, its blocks being slots; the least recently used give way.

    A block comes here after the one before it, so that what lies here can be found.
    """

    def __init__(self, num_slots: int, hasher: BlockHasher) -> None:
        self.index = PrefixIndex(hasher)
        self._order = LruOrder()
        self._free = list(range(num_slots - 1, -1, -1))

    def __len__(self) -> int:
        return len(self.index)

    def lacking(self, chain: Sequence[IndexedBlock]) -> list[IndexedBlock]:
        """Return the blocks of a chain in memory that aren't here: its end, or all of it."""
        here: Prefix = chain[0].parent
        for number, block in enumerate(chain):
            found = self.index.child(here, block.tokens)
            if found is None:
                return list(chain[number:])
            here = found
        return []

    def add(self, block: IndexedBlock) -> int | None:
        """Take a slot for a block in memory, or None when its chain doesn't fit or isn't here."""
        parent = self._here(block.parent)
        if parent is None:
            return None
        before = [] if isinstance(parent, PrefixRoot) else self._chain(parent)
        if not self._free:
            victim = self._order.next_victim()
            if victim in before:
                return None
            self.forget([victim])
        slot = self._free.pop()
        self.index.add(parent, slot, block.tokens)
        self._order.add(slot)
        self._order.keep([slot, *before])
        return slot

    def used(self, slot: int) -> None:
        """Note that a block and those before it were wanted."""
        self._order.keep([slot, *self.index.ancestors(slot)])

    def forget(self, slots: Iterable[int]) -> None:
        """Drop slots and all that comes after them."""
        for slot in slots:
            if slot in self.index:
                for removed in self.index.remove(slot):
                    self._order.discard(removed)
                    self._free.append(removed)

    def _here(self, prefix: Prefix) -> Prefix | None:
        """Return what stands here for a prefix in memory."""
        if isinstance(prefix, PrefixRoot):
            return prefix
        parent = self._here(prefix.parent)
        return self.index.child(parent, prefix.tokens) if parent is not None else None

    def _chain(self, block: IndexedBlock) -> list[int]:
        return [block.block_id, *self.index.ancestors(block.block_id)]
