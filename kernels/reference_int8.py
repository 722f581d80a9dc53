"""
The arithmetic of the int8 kernels in plain torch: integers in int64, everything else in float64.

The oracle that says whether a kernel computes what its format means. What the format itself loses
against float32 is another question (`slipstream eval`). Of float32 rows, integers and scales come
out as the kernels make them, to the bit: largest value, division and rounding have one result.
"""

import math

import torch
from torch import Tensor

_SEGMENT = 256  # positions whose softmax weights have one scale
_MAX_8_BITS = 127.0
_MAX_UNSIGNED = 65535.0  # a softmax weight of 16 bits
_MAX_16_BITS = 32512.0  # both planes stay within [-128, 127]


def quantize_rows(x: Tensor, outliers: int | Tensor = 0) -> tuple[Tensor, Tensor]:
    """
    Return integers [rows, k] and scales [rows], x ~ integers * scale.

    8 bits, but the outliers, the first columns or those named, have 16 under the same scale.
    """
    is_outlier = torch.zeros(x.shape[1], dtype=torch.bool)
    is_outlier[torch.arange(outliers) if isinstance(outliers, int) else outliers] = True
    limits = torch.where(is_outlier, _MAX_16_BITS, _MAX_8_BITS).to(x.dtype)
    # The largest of each kind is divided, as in the kernels: the same float32.
    parts = [
        x[:, part].abs().amax(1) / limits[part][0]
        for part in (is_outlier, ~is_outlier)
        if part.any()
    ]
    scales = torch.stack(parts).amax(0)
    inverse = torch.where(scales > 0, 1.0 / scales, torch.zeros_like(scales))
    return torch.round(x * inverse[:, None]), scales


def linear(x: Tensor, codes: Tensor, code_scales: Tensor, outliers: int | Tensor = 0) -> Tensor:
    """Return x W^T [rows, n] with W ~ codes [n, k] * code_scales [n]."""
    return linear_of_integers(*quantize_rows(x, outliers), codes, code_scales)


def linear_of_integers(
    integers: Tensor, scales: Tensor, codes: Tensor, code_scales: Tensor
) -> Tensor:
    """Return the same of rows that are integers [rows, k] * scales [rows] already."""
    sums = integers.double() @ codes.double().T
    return sums * scales.double()[:, None] * code_scales.double()[None, :]


def embed(token_ids: Tensor, codes: Tensor, code_scales: Tensor) -> Tensor:
    """Return rows of the output head, codes [vocab, k] * code_scales [vocab]."""
    return codes[token_ids].double() * code_scales[token_ids].double()[:, None]


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
    Queries have 16 bits, keys (rotated by a Hadamard transform, without their mean) and values 8.
    """
    dim = query.shape[-1]
    turned = hadamard(key, dim)
    if key_mean is not None:
        turned = turned - key_mean
    queries = _rounded(hadamard(query / math.sqrt(dim), dim), _MAX_16_BITS)
    return attention_of_integers(
        queries, _rounded(turned, _MAX_8_BITS), *_codes(value, _MAX_8_BITS)
    )


def attention_of_integers(
    queries: Tensor, keys: Tensor, codes: Tensor, code_scales: Tensor
) -> Tensor:
    """
    Return the same of queries and keys whose dot products are the scores.

    Values are codes [positions, kv_heads, dim] * code_scales [positions, kv_heads, 1]. A softmax
    weight, times its value's scale, has 16 bits: one scale for a row's weights of a segment.
    """
    group = queries.shape[1] // keys.shape[1]
    keys, codes, code_scales = (
        part.repeat_interleave(group, 1) for part in (keys, codes, code_scales)
    )
    scores = torch.einsum("rhd,phd->hrp", queries, keys)
    positions = torch.arange(len(keys))
    is_visible = positions[None, :] <= positions[len(keys) - len(queries) :, None]
    scores = scores.masked_fill(~is_visible, -math.inf)
    # Relative to the maximum of all positions. A kernel takes that of a segment, and corrects it
    # when it merges: rounding under a scale of the segment's own sees no difference.
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    folded = weights * code_scales[:, :, 0].T[:, None, :]
    rounded = [
        _rounded(folded[..., first : first + _SEGMENT], _MAX_UNSIGNED)
        for first in range(0, len(keys), _SEGMENT)
    ]
    sums = torch.einsum("hrp,phd->rhd", torch.cat(rounded, -1), codes)
    return sums / weights.sum(-1).T[:, :, None]


def _codes(x: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """Return integers of the last axis and its scale."""
    scales = x.abs().amax(-1, keepdim=True) / limit
    return torch.where(scales > 0, torch.round(x / scales), torch.zeros_like(x)), scales


def _rounded(x: Tensor, limit: float) -> Tensor:
    """Round the last axis to integers of its own scale and back."""
    codes, scales = _codes(x, limit)
    return codes * scales
