"""Block tables that grow between steps, and begin with copies of what others wrote."""

from pathlib import Path

from slipstream.shared.ids import HostId, LeaseId
from slipstream.shared.kv.arena import Arena
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.messages.kv import BlockCopy, Blocks, Leased
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.worker.leased_blocks import LeasedBlocks

SIZE = 4
LAYOUT = KvLayout(1, 1, 2, SIZE, kind="fake")


def leased(*block_ids: int, num_cached_tokens: int = 0, num_reserved: int = 0) -> LeasedBlocks:
    blocks = Blocks(PackedInts(block_ids), PackedInts([1] * len(block_ids)))
    answer = Leased(LeaseId("l"), blocks, 1000, num_cached_tokens, num_reserved_blocks=num_reserved)
    return LeasedBlocks.of(answer, SIZE)


def test_promised_blocks_enter_the_table_between_steps() -> None:
    blocks = leased(3, num_reserved=2)
    table = blocks.block_ids
    blocks.take(Blocks(PackedInts([5, 6]), PackedInts([2, 2])))
    assert ([3], 3, 2, SIZE) == (table, blocks.num_known, blocks.num_reserved, blocks.num_slots)
    blocks.absorb()

    assert ([3, 5, 6], [1, 2, 2]) == (table, blocks.generations)
    assert (3, 0, 3 * SIZE) == (blocks.num_known, blocks.num_reserved, blocks.num_slots)


def test_a_copy_begins_the_first_block_that_is_not_cached(tmp_path: Path) -> None:
    arena = Arena.create(tmp_path, HostId("h"), 1, 5, LAYOUT)
    size = LAYOUT.block_bytes
    arena.blocks[:] = bytes(number // size for number in range(5 * size))
    arena.generations[4] = 7
    blocks = leased(1, 2, num_cached_tokens=SIZE)
    blocks.copy(arena, BlockCopy(4, 7, 3))

    assert (SIZE + 3, SIZE) == (blocks.num_cached_tokens, blocks.num_cached_in_blocks)
    assert [0, 1, 4, 3, 4] == [arena.blocks[number * size] for number in range(5)]
    arena.close()


def test_a_block_that_was_given_away_meanwhile_is_not_counted(tmp_path: Path) -> None:
    arena = Arena.create(tmp_path, HostId("h"), 1, 5, LAYOUT)
    arena.generations[4] = 8
    blocks = leased(1, 2, num_cached_tokens=SIZE)
    blocks.copy(arena, BlockCopy(4, 7, 3))

    assert SIZE == blocks.num_cached_tokens
    arena.close()
