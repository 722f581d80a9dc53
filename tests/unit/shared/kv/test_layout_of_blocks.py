"""Sizes and identity of a KV layout."""

import dataclasses

import pytest

from slipstream.shared.kv.layout import KvLayout


def test_a_block_holds_keys_and_values_of_all_layers() -> None:
    layout = KvLayout(num_layers=30, num_kv_heads=3, head_dim=64)

    assert 30 * 2 * 3 * 64 * 4 == layout.bytes_per_token
    assert 32 * layout.bytes_per_token == layout.block_bytes


@pytest.mark.parametrize(("dtype", "head_bytes"), [("float32", 256), ("bf16", 128), ("int8", 68)])
def test_a_format_has_its_bytes_for_a_head(dtype: str, head_bytes: int) -> None:
    """Int8 has a scale with them."""
    layout = KvLayout(num_layers=5, num_kv_heads=3, head_dim=64, dtype=dtype)

    assert 5 * 2 * 3 * head_bytes == layout.bytes_per_token
    assert f" {dtype} " in layout.fingerprint


def test_the_fake_engine_takes_16_bytes_a_slot_whatever_the_model() -> None:
    layout = KvLayout(num_layers=30, num_kv_heads=3, head_dim=64, kind="fake")

    assert 16 * 32 == layout.block_bytes


def test_any_difference_shows_in_the_fingerprint() -> None:
    layout = KvLayout(num_layers=2, num_kv_heads=3, head_dim=4)
    others = [
        dataclasses.replace(layout, num_layers=3),
        dataclasses.replace(layout, num_kv_heads=2),
        dataclasses.replace(layout, head_dim=8),
        dataclasses.replace(layout, block_size=16),
        dataclasses.replace(layout, kind="fake"),
        dataclasses.replace(layout, dtype="bf16"),
        dataclasses.replace(layout, dtype="int8"),
    ]

    assert 8 == len({layout.fingerprint, *(other.fingerprint for other in others)})


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (32, 1), (33, 2)])
def test_blocks_are_counted_upwards(num_tokens: int, num_blocks: int) -> None:
    assert num_blocks == KvLayout(1, 1, 2).num_blocks_for(num_tokens)


def test_sizes_and_dtypes_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        KvLayout(num_layers=0, num_kv_heads=1, head_dim=2)
    with pytest.raises(ValueError, match="int3"):
        KvLayout(num_layers=1, num_kv_heads=1, head_dim=2, dtype="int3")
