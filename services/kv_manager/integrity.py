"""
Compare who holds what with the states of the blocks, and the parts of the pool with each other.

All of it takes a quarter of a second at 100,000 blocks, so it comes in slices. What is held is
compared as of one moment, from copies: those are made at once. What the index and the eviction
order say of a block concerns that block and those around it, and is looked at as it is by then.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from operator import lt

from slipstream.services.kv_manager.eviction import EvictionOrder
from slipstream.services.kv_manager.pool import NULL_BLOCK, BlockPool, BlockState, PoolSnapshot
from slipstream.services.kv_manager.prefix_index import PrefixIndex
from slipstream.services.kv_manager.slices import Pace, Sliced, batches

Problems = list[str]


def find_problems(
    pool: BlockPool,
    committed: Sequence[Sequence[int]],
    owned: Sequence[tuple[BlockState, Sequence[int]]],
) -> Sliced[Problems]:
    """
    Return what contradicts itself; empty when all blocks are accounted for.

    `committed` are the blocks that each lease reads, `owned` those that one owner alone has, as
    they are now: until the first pause nothing may change.
    """
    seen = pool.snapshot()
    yield
    found = yield from _held_wrong(seen, committed, owned)
    found += _counted_wrong(seen)
    yield
    for block_ids in batches(range(NULL_BLOCK + 1, pool.num_blocks + 1)):
        for block_id in block_ids:
            found += pool.problems_of(block_id)
        yield
    found += yield from pool.index.problems()
    found += yield from _ordered_wrong(pool.index, pool.order)
    return found


def _held_wrong(
    seen: PoolSnapshot,
    committed: Sequence[Sequence[int]],
    owned: Sequence[tuple[BlockState, Sequence[int]]],
) -> Sliced[Problems]:
    found = []
    pace = Pace()
    ref_counts: Counter[int] = Counter()
    for read in committed:
        ref_counts.update(read)
        if pace.is_over(len(read)):
            yield
    held = dict.fromkeys(ref_counts, BlockState.COMMITTED)
    for state, block_ids in owned:
        found += [f"block {block_id} is held twice" for block_id in block_ids if block_id in held]
        held.update(dict.fromkeys(block_ids, state))
        if pace.is_over(len(block_ids)):
            yield
    for items in batches(list(held.items())):
        for block_id, state in items:
            if seen.states[block_id] is not state:
                is_state = seen.states[block_id].value
                found.append(f"block {block_id} is {is_state}, the books say {state.value}")
            if seen.ref_counts[block_id] != ref_counts[block_id]:
                found.append(
                    f"{ref_counts[block_id]} leases hold block {block_id},"
                    f" its count is {seen.ref_counts[block_id]}"
                )
        yield
    num_blocks = len(seen.states) - 1
    if len(held) + seen.num_available != num_blocks:
        found.append(f"{len(held)} held + {seen.num_available} free or cached of {num_blocks}")
    return found


def _counted_wrong(seen: PoolSnapshot) -> Problems:
    found = []
    if not 0 <= seen.num_reserved <= seen.num_available:
        found.append(f"{seen.num_reserved} blocks are promised of {seen.num_available}")
    counted = Counter(seen.states[NULL_BLOCK + 1 :])
    if any(counted[state] != number for state, number in seen.counts.items()):
        found.append("blocks were counted wrong by state")
    if seen.counts[BlockState.FREE] != len(seen.free):
        found.append(f"{len(seen.free)} blocks queue as free, the states say otherwise")
    if len(set(seen.free)) != len(seen.free):
        found.append("a block queues as free twice")
    if seen.counts[BlockState.CACHED] != seen.num_cached:
        found.append(f"{seen.num_cached} blocks queue as cached, the states say otherwise")
    return found


def _ordered_wrong(index: PrefixIndex, order: EvictionOrder) -> Sliced[Problems]:
    """Return which blocks would be evicted before some that come after them."""
    found = []
    for queue in order.queues():
        times = list(queue.values())
        yield
        if not all(map(lt, times, islice(times, 1, None))):
            found.append("blocks queue for eviction in another order than they were used in")
        yield
        queued = list(queue)
        yield
        for block_ids in batches(queued):
            found += [
                f"block {block_id} is evicted after block {ancestor}, which comes before it"
                for block_id in block_ids
                if (ancestor := _evicted_too_early(block_id, index, order)) is not None
            ]
            yield
    return found


def _evicted_too_early(block_id: int, index: PrefixIndex, order: EvictionOrder) -> int | None:
    """Return the next block before one that can be evicted, if that is to go first."""
    if block_id not in index or block_id not in order:
        return None  # it went, or is in use by now
    ancestor = next((each for each in index.ancestors(block_id) if each in order), None)
    if ancestor is None or order.rank(block_id) < order.rank(ancestor):
        return None
    return ancestor
