"""Every operation in plain torch: the oracle for faster kernels, and the fallback everywhere."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """See `ops.rms_norm`."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See `ops.rotary`."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def linear(x: Tensor, weights: Tensor) -> Tensor:
    """Return x W^T, x [rows, k] and weights [n, k]."""
    return x @ weights.T


def embed(token_ids: Tensor, table: Tensor) -> Tensor:
    """Return the rows of a table [vocab, hidden] that the tokens name."""
    return table[token_ids]


def silu_and_multiply(gate: Tensor, up: Tensor) -> Tensor:
    """See `ops.silu_and_multiply`."""
    return functional.silu(gate) * up


def write_kv(
    keys: Tensor, values: Tensor, kv_cache: Tensor, layer_idx: int, slot_mapping: Tensor
) -> None:
    """See `ops.write_kv`."""
    block_size = kv_cache.shape[4]
    block_ids, offsets = slot_mapping // block_size, slot_mapping % block_size
    # [blocks, 2, kv_heads, slots, head_dim] with the two indexed dimensions in front.
    by_slot = kv_cache[:, layer_idx].permute(0, 3, 1, 2, 4)
    by_slot[block_ids, offsets] = torch.stack((keys, values), dim=1)


def paged_attention(
    query: Tensor,
    kv_cache: Tensor,
    layer_idx: int,
    block_tables: Sequence[Tensor],
    num_query_rows: Sequence[int],
    context_lens: Sequence[int],
) -> Tensor:
    """See `ops.paged_attention`."""
    output = torch.empty_like(query)
    row = 0
    for block_table, num_rows, context_len in zip(
        block_tables, num_query_rows, context_lens, strict=True
    ):
        keys, values = _gather(kv_cache, layer_idx, block_table, context_len)
        rows = slice(row, row + num_rows)
        output[rows] = _attend(query[rows], keys, values)
        row += num_rows
    return output


def _gather(
    kv_cache: Tensor, layer_idx: int, block_table: Tensor, context_len: int
) -> tuple[Tensor, Tensor]:
    """Copy one sequence's keys and values out of its blocks, each [kv_heads, context, head_dim]."""
    _, num_layers, _, num_kv_heads, block_size, head_dim = kv_cache.shape
    # One row of this view is one head's slots in one block, so that a single copy both follows
    # the block table and puts the heads in front.
    panels = kv_cache.view(-1, block_size * head_dim)
    num_panels = 2 * num_kv_heads
    used = block_table[: -(-context_len // block_size)]
    first_panel = torch.arange(num_panels).unsqueeze(1) + layer_idx * num_panels
    panel_ids = first_panel + used * (num_layers * num_panels)
    gathered = panels.index_select(0, panel_ids.flatten())
    # Slots past the context length may hold anything, NaN included: cut, not masked.
    keys, values = gathered.view(2, num_kv_heads, -1, head_dim)[:, :, :context_len].unbind(0)
    return keys, values


def _attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attend from the last rows of one sequence to its whole context, causally."""
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads, context_len, _ = keys.shape
    # The query heads of one KV head stand below one another as rows: its keys are read once.
    grouped = query.view(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    stacked = grouped.permute(1, 2, 0, 3).reshape(num_kv_heads, -1, head_dim)
    mask = None
    if num_rows > 1:
        visible = torch.ones(num_rows, context_len, dtype=torch.bool)
        mask = visible.tril(context_len - num_rows).repeat(num_heads // num_kv_heads, 1)
    attended = functional.scaled_dot_product_attention(
        stacked.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask
    )
    by_head = attended.view(num_kv_heads, num_heads // num_kv_heads, num_rows, head_dim)
    return by_head.permute(2, 0, 1, 3).reshape(num_rows, num_heads, head_dim)
