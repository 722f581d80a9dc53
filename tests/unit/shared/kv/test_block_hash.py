"""Hashes of full blocks: chained, rooted in keys of which each has its kind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.shared.kv.block_hash import BlockHasher, PrefixKeys, full_blocks
from slipstream.shared.messages.packed import PackedInts

KINDS = ("layout", "model", "numerics", "cache_salt", "adapter")
some_keys = st.fixed_dictionaries(
    {"layout": st.text("al", max_size=3)},
    optional={kind: st.text("adptersl\0\1", max_size=8) for kind in KINDS[1:]},
)


@given(first=some_keys, second=some_keys)
def test_other_keys_are_other_bytes(first: dict[str, str], second: dict[str, str]) -> None:
    packed = [PrefixKeys(**each).packed() for each in (first, second)]
    said = [{kind: value for kind, value in each.items() if value} for each in (first, second)]

    assert (said[0] == said[1]) == (packed[0] == packed[1])


def test_a_block_s_hash_depends_on_what_comes_before() -> None:
    hasher = BlockHasher()
    roots = [hasher.root(PrefixKeys(layout="", **{kind: "a"}).packed()) for kind in KINDS[1:]]
    hashes = {hasher.child(root, b"tokens") for root in roots}
    hashes |= {hasher.child(each, b"tokens") for each in list(hashes)}

    assert 8 == len(hashes)


@pytest.mark.parametrize(("num_bits", "most"), [(0, 1), (3, 8), (128, 500)])
def test_a_hash_can_be_cut(num_bits: int, most: int) -> None:
    hasher = BlockHasher(num_bits)
    root = hasher.root(b"")

    assert most == len({hasher.child(root, bytes([i % 256, i // 256])) for i in range(500)})


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2)])
def test_only_full_blocks_are_hashed(num_tokens: int, num_blocks: int) -> None:
    blocks = list(full_blocks(PackedInts(range(num_tokens)), 4))

    assert [16] * num_blocks == [len(each) for each in blocks]
    assert PackedInts(range(4 * num_blocks)) == PackedInts.from_bytes(b"".join(blocks))
