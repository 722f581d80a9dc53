"""
The arithmetic of the int8 kernels in plain torch: integers in int64, everything else in float64.

The oracle that says whether a kernel computes what its format means. What the format itself loses
against float32 is another question (`slipstream eval`).
"""

import math

import torch
from torch import Tensor

_PLANE = 256  # a 16-bit activation is low + 256 * high
_MAX_8_BITS = 127.0
_MAX_UNSIGNED = 65535.0  # a softmax weight of 16 bits
_MAX_16_BITS = 32512.0  # both planes stay within [-128, 127]


def quantize_rows(x: Tensor, num_outliers: int = 0) -> tuple[Tensor, Tensor]:
    """
    Return integers [rows, k] and scales [rows], x ~ integers * scale.

    8 bits, but the first `num_outliers` columns have 16 under the same scale.
    """
    scales = x[:, num_outliers:].abs().amax(1) / _MAX_8_BITS
    if num_outliers:
        scales = torch.maximum(scales, x[:, :num_outliers].abs().amax(1) / _MAX_16_BITS)
    inverse = torch.where(scales > 0, 1.0 / scales, torch.zeros_like(scales))
    return torch.round(x * inverse[:, None]), scales


def linear(x: Tensor, codes: Tensor, code_scales: Tensor, num_outliers: int = 0) -> Tensor:
    """Return x W^T [rows, n] with W ~ codes [n, k] * code_scales [n]."""
    integers, scales = quantize_rows(x, num_outliers)
    sums = integers @ codes.to(x.dtype).T
    return sums * scales[:, None] * code_scales.to(x.dtype)[None, :]


def hadamard(x: Tensor, block: int) -> Tensor:
    """Return the orthonormal Walsh-Hadamard transform of the columns, block by block."""
    matrix = torch.ones(1, 1, dtype=x.dtype)
    while len(matrix) < block:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    blocks = x.reshape(*x.shape[:-1], -1, block)
    return (blocks @ matrix / math.sqrt(block)).reshape(x.shape)


def attention(query: Tensor, key: Tensor, value: Tensor, key_mean: Tensor | None) -> Tensor:
    """
    Return causal attention of one sequence over a KV cache of 8 bits.

    query [rows, heads, dim] are the last rows; key and value [positions, kv_heads, dim], rotated.
    Queries and softmax weights have 16 bits, keys (rotated by a Hadamard transform, without their
    mean) and values 8. Up to one segment of 256 positions: the kernel takes a maximum for each.
    """
    num_rows, num_heads, dim = query.shape
    num_positions, num_kv_heads, _ = key.shape
    turned = hadamard(key, dim)
    if key_mean is not None:
        turned = turned - key_mean
    keys, values = _rounded(turned, _MAX_8_BITS), value
    queries = _rounded(hadamard(query / math.sqrt(dim), dim), _MAX_16_BITS)
    group = num_heads // num_kv_heads
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("rhd,phd->hrp", queries, keys)
    positions = torch.arange(num_positions)
    is_visible = positions[None, :] <= positions[num_positions - num_rows :, None]
    scores = scores.masked_fill(~is_visible, -math.inf)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    codes, scales = _codes(values, _MAX_8_BITS)
    # A value's scale goes into its weight; weights have 16 bits without a sign.
    folded = _rounded(weights * scales[:, :, 0].T[:, None, :], _MAX_UNSIGNED)
    sums = torch.einsum("hrp,phd->rhd", folded, codes)
    return sums / weights.sum(-1).T[:, :, None]


def _codes(x: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """Return integers of the last axis and its scale."""
    scales = x.abs().amax(-1, keepdim=True) / limit
    return torch.where(scales > 0, torch.round(x / scales), torch.zeros_like(x)), scales


def _rounded(x: Tensor, limit: float) -> Tensor:
    """Round the last axis to integers of its own scale and back."""
    codes, scales = _codes(x, limit)
    return codes * scales
