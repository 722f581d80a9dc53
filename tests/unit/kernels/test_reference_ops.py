"""The plain torch operations against loops in float64, on odd shapes and with poisoned memory."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch

from slipstream.kernels import ops

Wide = npt.NDArray[np.float64]

# Float32 sums of at most a few hundred terms of order one.
_TOLERANCE = 2e-5
_BLOCK_SIZE = 32
_NUM_LAYERS, _LAYER_IDX = 3, 1


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _assert_close(name: str, expected: Wide, found: torch.Tensor) -> None:
    np.testing.assert_allclose(
        found.double().numpy(), expected, rtol=_TOLERANCE, atol=_TOLERANCE, err_msg=name
    )


@pytest.mark.parametrize(("num_rows", "size"), [(1, 1), (3, 7), (5, 576)])
def test_rms_norm_divides_by_the_root_of_the_mean_square(num_rows: int, size: int) -> None:
    x, weight = _random(num_rows, size), _random(size, seed=1)
    expected = np.zeros((num_rows, size))
    for row in range(num_rows):
        mean = sum(float(v) ** 2 for v in x[row]) / size
        for i in range(size):
            expected[row, i] = float(x[row, i]) / math.sqrt(mean + 1e-5) * float(weight[i])

    _assert_close("rms_norm", expected, ops.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("head_dim", [2, 6, 64])
def test_rotary_turns_each_pair_by_its_angle(head_dim: int) -> None:
    x, angles = _random(3, 2, head_dim), _random(3, head_dim // 2, seed=1)
    half = head_dim // 2
    expected = np.zeros((3, 2, head_dim))
    for row, head, i in np.ndindex(3, 2, half):
        a, b, angle = float(x[row, head, i]), float(x[row, head, i + half]), float(angles[row, i])
        expected[row, head, i] = a * math.cos(angle) - b * math.sin(angle)
        expected[row, head, i + half] = b * math.cos(angle) + a * math.sin(angle)

    _assert_close("rotary", expected, ops.rotary(x, angles.cos(), angles.sin()))


def test_silu_and_multiply_gates_each_element() -> None:
    gate, up = _random(3, 5) * 10, _random(3, 5, seed=1)
    wide = gate.double().numpy()
    expected = wide / (1 + np.exp(-wide)) * up.double().numpy()

    _assert_close("silu_and_multiply", expected, ops.silu_and_multiply(gate, up))


def test_write_kv_changes_the_named_slots_of_one_layer_only() -> None:
    kv_cache = torch.full((4, _NUM_LAYERS, 2, 2, _BLOCK_SIZE, 3), math.nan)
    keys, values = _random(3, 2, 3), _random(3, 2, 3, seed=1)
    slots = [3 * _BLOCK_SIZE + 31, 0, 1 * _BLOCK_SIZE + 5]

    ops.write_kv(keys, values, kv_cache, _LAYER_IDX, torch.tensor(slots))

    for row, slot in enumerate(slots):
        block_id, offset = divmod(slot, _BLOCK_SIZE)
        written = kv_cache[block_id, _LAYER_IDX, :, :, offset]
        assert torch.equal(written, torch.stack((keys[row], values[row])))
    assert kv_cache.isfinite().sum() == keys.numel() + values.numel()


def _naive_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, first_position: int
) -> Wide:
    """Attend row by row: query [rows, heads, dim], keys and values [kv_heads, context, dim]."""
    num_rows, num_heads, head_dim = query.shape
    group_size = num_heads // keys.shape[0]
    wide_query, wide_keys, wide_values = (t.double().numpy() for t in (query, keys, values))
    output = np.zeros((num_rows, num_heads, head_dim))
    for row, head in np.ndindex(num_rows, num_heads):
        visible = first_position + row + 1
        past_keys = wide_keys[head // group_size, :visible]
        scores = past_keys @ wide_query[row, head] / math.sqrt(head_dim)
        weights = np.exp(scores - scores.max())
        past_values = wide_values[head // group_size, :visible]
        output[row, head] = weights @ past_values / weights.sum()
    return output


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"), [(1, 1, 2), (6, 2, 10), (9, 3, 64)]
)
@pytest.mark.parametrize(
    "sequences",  # (context length, rows) each
    [
        [(1, 1)],
        [(31, 1)],
        [(32, 1)],
        [(33, 1)],
        [(33, 33)],
        [(70, 7)],
        [(1, 1), (65, 1), (32, 5), (40, 40), (64, 2)],
    ],
)
def test_paged_attention_equals_the_row_by_row_loop(
    num_heads: int, num_kv_heads: int, head_dim: int, sequences: list[tuple[int, int]]
) -> None:
    """Blocks are scattered, and every slot that belongs to nobody is NaN."""
    num_blocks = 12
    kv_cache = torch.full(
        (num_blocks, _NUM_LAYERS, 2, num_kv_heads, _BLOCK_SIZE, head_dim), math.nan
    )
    free_blocks = np.random.default_rng(0).permutation(num_blocks).tolist()
    queries, block_tables, expected = [], [], []
    for seed, (context_len, num_rows) in enumerate(sequences):
        keys, values = _random(2, num_kv_heads, context_len, head_dim, seed=seed)
        num_used = -(-context_len // _BLOCK_SIZE)
        block_table, free_blocks = free_blocks[:num_used], free_blocks[num_used:]
        for position in range(context_len):
            block_id, offset = block_table[position // _BLOCK_SIZE], position % _BLOCK_SIZE
            kv_cache[block_id, _LAYER_IDX, 0, :, offset] = keys[:, position]
            kv_cache[block_id, _LAYER_IDX, 1, :, offset] = values[:, position]
        query = _random(num_rows, num_heads, head_dim, seed=100 + seed)
        queries.append(query)
        # A block granted ahead of need lies past the context.
        block_tables.append(torch.tensor([*block_table, free_blocks[0]]))
        expected.append(_naive_attention(query, keys, values, context_len - num_rows))

    found = ops.paged_attention(
        torch.cat(queries),
        kv_cache,
        _LAYER_IDX,
        block_tables,
        [num_rows for _, num_rows in sequences],
        [context_len for context_len, _ in sequences],
    )

    _assert_close("paged_attention", np.concatenate(expected), found)
