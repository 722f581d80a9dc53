"""The blocks of a host: one state each, a new generation at each reuse."""

import pytest

from slipstream.services.kv_manager.integrity import find_problems
from slipstream.services.kv_manager.pool import NULL_BLOCK, BlockState
from slipstream.services.kv_manager.slices import finish

from .lease_messages import make_pool


def test_too_few_blocks_are_none_at_all() -> None:
    pool = make_pool()

    assert pool.take(5, BlockState.LEASED) is None
    assert 4 == pool.num_free


def test_the_null_block_is_never_handed_out() -> None:
    taken = make_pool().take(4, BlockState.LEASED)

    assert taken is not None
    assert NULL_BLOCK not in taken


def test_each_reuse_has_a_new_generation_and_zero_is_none() -> None:
    pool = make_pool(1)
    pool.generations[1] = 2**32 - 2
    seen = []
    for _ in range(3):
        pool.free(pool.take(1, BlockState.LEASED) or [])
        seen.append(pool.generations[1])

    assert [2**32 - 1, 1, 2] == seen


def test_blocks_are_counted_by_state_as_they_move() -> None:
    pool = make_pool()
    taken = pool.take(3, BlockState.GRANTED) or []
    pool.move(taken[:2], BlockState.LEASED)
    pool.commit(taken[:1])
    pool.free(taken[2:])
    counted = {state: number for state, number in pool.counts().items() if number}

    assert {BlockState.FREE: 2, BlockState.LEASED: 1, BlockState.COMMITTED: 1} == counted
    held = find_problems(pool, [taken[:1]], [(BlockState.LEASED, taken[1:2])])
    assert [] == finish(held)


def test_a_wrong_count_is_a_problem() -> None:
    pool = make_pool()
    pool._counts[BlockState.LEASED] += 1

    assert ["blocks were counted wrong by state"] == finish(find_problems(pool, [], []))


def test_tails_are_reused_before_heads() -> None:
    pool = make_pool()
    taken = pool.take(4, BlockState.LEASED) or []
    pool.free(taken)

    assert taken[::-1] == pool.take(4, BlockState.LEASED)


def test_what_we_do_wrong_ourselves_is_an_assertion() -> None:
    pool = make_pool()
    taken = pool.take(1, BlockState.LEASED) or []
    pool.free(taken)

    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(taken)
    with pytest.raises(AssertionError, match="is free"):
        pool.move(taken, BlockState.COMMITTED)


@pytest.mark.parametrize(("block_id", "generation"), [(0, 0), (5, 0), (1, 0)])
def test_blocks_that_nobody_has_are_not_current(block_id: int, generation: int) -> None:
    pool = make_pool()
    pool.take(4, BlockState.LEASED)

    assert not pool.is_current(block_id, generation)
    assert pool.is_current(1, 1)


def test_contradictions_are_found() -> None:
    pool = make_pool()
    assert [] == finish(find_problems(pool, [], []))
    pool._free.append(1)

    assert 3 == len(finish(find_problems(pool, [], [])))
