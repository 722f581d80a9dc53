"""Compare who holds what with the states of the blocks."""

from collections import Counter
from collections.abc import Iterable, Sequence

from slipstream.services.kv_manager.pool import BlockPool, BlockState


def find_problems(
    pool: BlockPool,
    committed: Iterable[Sequence[int]],
    owned: Iterable[tuple[BlockState, Sequence[int]]],
) -> list[str]:
    """
    Return what contradicts itself; empty when all blocks are accounted for.

    `committed` are the blocks that each lease reads, `owned` those that one owner alone has.
    """
    ref_counts = Counter(block_id for each in committed for block_id in each)
    held = dict.fromkeys(ref_counts, BlockState.COMMITTED)
    found = pool.problems()
    for state, block_ids in owned:
        found += [f"block {block_id} is held twice" for block_id in block_ids if block_id in held]
        held |= dict.fromkeys(block_ids, state)
    for block_id, state in held.items():
        if pool.state(block_id) is not state:
            is_state = pool.state(block_id).value
            found.append(f"block {block_id} is {is_state}, the books say {state.value}")
        if pool.ref_count(block_id) != ref_counts[block_id]:
            found.append(
                f"{ref_counts[block_id]} leases hold block {block_id},"
                f" its count is {pool.ref_count(block_id)}"
            )
    if len(held) + pool.num_available != pool.num_blocks:
        found.append(
            f"{len(held)} held + {pool.num_available} free or cached of {pool.num_blocks} blocks"
        )
    return found
