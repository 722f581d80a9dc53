"""
In which order cached blocks are evicted. Pure: knows block ids and hashes, no states.

Every order keeps one promise: a block goes before the ones that it comes after. It rests on its
user, who adds a sequence's last block first and then keeps the whole chain.
"""

import heapq
import math
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from slipstream.shared.config import Eviction
from slipstream.shared.kv.block_hash import BlockHash

# Measured with bench/prefix_policy.py. A larger share helps pools that are far too small for what
# comes back, and harms those that hold nearly all of it.
PROTECTED_SHARE = 0.25
_IS_FREQUENT = 2  # requests
_MAX_NUM_DEMOTED = 4  # a step: a share that shrinks is followed in small steps

# What is known of a block's content, and where a block stands.
_UNKNOWN, _SEEN, _FREQUENT = range(3)
_NOWHERE, _PROBATION, _DEMOTED, _PROTECTED = range(4)

# Blocks seen once fill the sketch: with so many cells a block, one in twenty of those is taken
# for a known one. Each cell is halved once in five times as many counts as there are blocks.
_CELLS_A_BLOCK = 32
_SLICE = 64  # cells
_COUNTS_A_SLICE = 10
_PLACES = struct.Struct("<Q4B4x")
_MAX_COUNT = 15
_HALVED = bytes(count // 2 for count in range(256))


class EvictionOrder(Protocol):
    """The blocks that can be evicted, and what is known of all that can be found."""

    def __contains__(self, block_id: int, /) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[int]: ...

    def written(self, block_id: int, block_hash: BlockHash, parent_id: int | None) -> None:
        """Note that a request wrote a block, the first time that a block is told of."""

    def add(self, block_id: int) -> None:
        """Let a block be evicted, as the one used last."""

    def discard(self, block_id: int) -> None:
        """Let a block not be evicted, for it is in use."""

    def forget(self, block_id: int) -> None:
        """Drop all that is known of a block whose content is gone."""

    def hit(self, block_id: int, block_hash: BlockHash) -> None:
        """Note that a request found a block that another one wrote."""

    def knows(self, block_id: int) -> bool:
        """Tell whether a block was told of, since its content was gone last."""

    def keep(self, chain: Iterable[int]) -> None:
        """Count a chain of blocks, the last one first, as used now and as much as the last."""

    def next_victim(self) -> int:
        """Return the block to evict; there must be one."""

    def queues(self) -> Iterable[Mapping[int, int]]:
        """Return the queues of blocks, each with when it was used last."""

    def rank(self, block_id: int) -> tuple[int, int]:
        """Return how late a block that is here will be evicted."""


def make_order(eviction: Eviction, num_blocks: int) -> EvictionOrder:
    """Return an empty order for a pool."""
    return FilteredOrder(num_blocks) if eviction == "filtered" else LruOrder()


class LruOrder:
    """Least recently used first."""

    def __init__(self) -> None:
        self._queue: OrderedDict[int, int] = OrderedDict()  # to when it was used last
        self._now = 0

    def __contains__(self, block_id: int, /) -> bool:
        return block_id in self._queue

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[int]:
        return iter(self._queue)

    def written(self, block_id: int, block_hash: BlockHash, parent_id: int | None) -> None:
        """Learn nothing: when a block was used last is all that counts."""

    def add(self, block_id: int) -> None:
        """Put a block last."""
        self._now += 1
        self._queue[block_id] = self._now

    def discard(self, block_id: int) -> None:
        """Take a block out."""
        self._queue.pop(block_id, None)

    forget = discard

    def knows(self, block_id: int) -> bool:  # noqa: ARG002 - the filtered order asks which
        """Claim to know all: there is nothing to be told."""
        return True

    def hit(self, block_id: int, block_hash: BlockHash) -> None:
        """Learn nothing here either."""

    def keep(self, chain: Iterable[int]) -> None:
        """Put the blocks of a chain last."""
        for block_id in chain:
            if block_id in self._queue:
                self._queue.move_to_end(block_id)
                self.add(block_id)

    def next_victim(self) -> int:
        """Return the first."""
        return next(iter(self))

    def queues(self) -> Iterable[Mapping[int, int]]:
        """Return the one."""
        return (self._queue,)

    def rank(self, block_id: int) -> tuple[int, int]:
        """Return when it was used last."""
        return 0, self._queue[block_id]


class FilteredOrder:
    """
    Least recently used first, but what was asked for twice is behind what was asked for once.

    A block on probation that is found, or that comes back after its eviction, is protected. Only a
    share of all can be: beyond it the least recently used are demoted, and go when their age says
    so. Of a chain, a block is protected if one after it is.
    """

    def __init__(self, num_blocks: int, protected_share: float = PROTECTED_SHARE) -> None:
        self._protected_share = protected_share
        self._sketch = FrequencySketch(num_blocks)
        # By block, in a byte each: asked of every block of every lease, and small enough to stay in
        # the processor's caches.
        self._fame = bytearray(num_blocks + 1)
        self._segment_of = bytearray(num_blocks + 1)
        self._now = 0
        # Block to time of its last use, by which each is sorted.
        self._probation: OrderedDict[int, int] = OrderedDict()
        self._demoted: OrderedDict[int, int] = OrderedDict()
        self._protected: OrderedDict[int, int] = OrderedDict()
        self._segments = (OrderedDict[int, int](), self._probation, self._demoted, self._protected)

    def __contains__(self, block_id: int, /) -> bool:
        return self._segment_of[block_id] != _NOWHERE

    def __len__(self) -> int:
        return len(self._probation) + len(self._protected) + len(self._demoted)

    def __iter__(self) -> Iterator[int]:
        unprotected = heapq.merge(
            self._probation.items(), self._demoted.items(), key=lambda item: item[1]
        )
        yield from (block_id for block_id, _ in unprotected)
        yield from self._protected

    @property
    def num_protected(self) -> int:
        """Blocks that go after all others."""
        return len(self._protected)

    def written(self, block_id: int, block_hash: BlockHash, parent_id: int | None) -> None:
        """
        Recognise a block that was evicted and comes back, after a parent that is frequent too.

        Without the parents, one mistake of the sketch would protect all of a long chain.
        """
        if self._fame[block_id] != _UNKNOWN:
            return
        is_parent_frequent = parent_id is None or self._fame[parent_id] == _FREQUENT
        is_known = self._sketch.count(block_hash) >= _IS_FREQUENT
        self._fame[block_id] = _FREQUENT if is_known and is_parent_frequent else _SEEN

    def add(self, block_id: int) -> None:
        """Put a block last in its segment."""
        self._put_last(block_id)

    def discard(self, block_id: int) -> None:
        """Take a block out; it comes back to where it belongs by what is known of it."""
        segment = self._segment_of[block_id]
        if segment != _NOWHERE:
            del self._segments[segment][block_id]
            self._segment_of[block_id] = _NOWHERE

    def forget(self, block_id: int) -> None:
        """Drop all but the frequency of the block's content."""
        self.discard(block_id)
        self._fame[block_id] = _UNKNOWN

    def knows(self, block_id: int) -> bool:
        """Tell whether a block was written or hit since it was forgotten last."""
        return self._fame[block_id] != _UNKNOWN

    def hit(self, block_id: int, block_hash: BlockHash) -> None:
        """Protect a block from now on."""
        # What is protected already needs no better memory, and a lease may find many of those.
        if self._fame[block_id] != _FREQUENT:
            self._sketch.count(block_hash)
            self._fame[block_id] = _FREQUENT

    def keep(self, chain: Iterable[int]) -> None:
        """Put the blocks of a chain last; from a protected one on all are."""
        fame, segment_of = self._fame, self._segment_of
        is_frequent = False
        for block_id in chain:
            if is_frequent:
                fame[block_id] = _FREQUENT
            else:
                is_frequent = fame[block_id] == _FREQUENT
            if segment_of[block_id] != _NOWHERE:
                self._put_last(block_id)

    def next_victim(self) -> int:
        """Return the oldest that isn't protected, after demoting what is too much."""
        num_most = math.floor(self._protected_share * len(self))
        for _ in range(min(_MAX_NUM_DEMOTED, self.num_protected - num_most)):
            self._demote()
        if not self._probation and not self._demoted:
            self._demote()
        demoted, on_probation = next(iter(self._demoted), None), next(iter(self._probation), None)
        if demoted is None or on_probation is None:
            return next(each for each in (demoted, on_probation) if each is not None)
        is_older = self._demoted[demoted] < self._probation[on_probation]
        return demoted if is_older else on_probation

    def queues(self) -> Iterable[Mapping[int, int]]:
        """Return all three."""
        return self._segments[1:]

    def rank(self, block_id: int) -> tuple[int, int]:
        """Return whether it is protected, and when it was used last."""
        segment = self._segment_of[block_id]
        return int(segment == _PROTECTED), self._segments[segment][block_id]

    def _put_last(self, block_id: int) -> None:
        self._now += 1
        wanted = _PROTECTED if self._fame[block_id] == _FREQUENT else _PROBATION
        segment = self._segments[wanted]
        if self._segment_of[block_id] == wanted:
            segment.move_to_end(block_id)
        else:
            self.discard(block_id)
            self._segment_of[block_id] = wanted
        segment[block_id] = self._now

    def _demote(self) -> None:
        block_id, used_at = self._protected.popitem(last=False)
        self._fame[block_id] = _SEEN
        self._demoted[block_id] = used_at
        self._segment_of[block_id] = _DEMOTED


class FrequencySketch:
    """
    About how often each hash was counted lately, never too low but for ageing.

    A count-min sketch that ages as TinyLFU's does, but slice by slice: no count pays for the whole
    table. A hash has all its places in one slice, or the first to be halved would end its memory.
    """

    def __init__(self, num_blocks: int) -> None:
        self._num_slices = -(-max(1, num_blocks) * _CELLS_A_BLOCK // _SLICE)
        self._cells = bytearray(self._num_slices * _SLICE)
        self._num_counts = 0
        self._next_slice = 0

    def count(self, block_hash: BlockHash) -> int:
        """Count a hash once more; return how often it has been."""
        self._num_counts += 1
        if self._num_counts % _COUNTS_A_SLICE == 0:
            self._age()
        # Written out: a lease counts each block that it finds the first time.
        cells = self._cells
        number, a, b, c, d = _PLACES.unpack(block_hash)
        start = number % self._num_slices * _SLICE
        a, b, c, d = start + a % _SLICE, start + b % _SLICE, start + c % _SLICE, start + d % _SLICE
        before: int = min(cells[a], cells[b], cells[c], cells[d])
        if before == _MAX_COUNT:
            return before
        for place in (a, b, c, d):
            # The others were counted up by other hashes.
            if cells[place] == before:
                cells[place] = before + 1
        return before + 1

    def _age(self) -> None:
        part = slice(self._next_slice, self._next_slice + _SLICE)
        self._cells[part] = self._cells[part].translate(_HALVED)
        self._next_slice = part.stop % len(self._cells)
