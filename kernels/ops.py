"""The operations of a decoder layer and their contracts; today the plain torch ones run everywhere.

Shapes: `rows` are the tokens of a step, all sequences concatenated without padding. The KV cache
is [blocks, layers, 2, kv_heads, block_size, head_dim] (2: keys, values), contiguous. Floats are
float32, indices int64.
"""

from collections.abc import Sequence

from torch import Tensor

from slipstream.kernels import reference


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """
    Return `x / sqrt(mean(x^2) + epsilon) * weight`, the mean over the last dimension.

    x [rows, hidden], weight [hidden]. Source: arXiv:1910.07467, equation 4.
    """
    return reference.rms_norm(x, weight, epsilon)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """
    Rotate each head by its row's position, pairing element i with i + head_dim / 2.

    x [rows, heads, head_dim]; cos and sin [rows, head_dim / 2] hold the angles
    `position * theta^(-2i / head_dim)`. With a and b the halves of a head the result is
    `(a cos - b sin, b cos + a sin)`. Source: arXiv:2104.09864, in the pairing of Hugging Face
    checkpoints.
    """
    return reference.rotary(x, cos, sin)


def silu_and_multiply(gate: Tensor, up: Tensor) -> Tensor:
    """
    Return `gate * sigmoid(gate) * up`, element by element.

    gate and up [rows, intermediate]. Source: SwiGLU, arXiv:2002.05202.
    """
    return reference.silu_and_multiply(gate, up)


def write_kv(
    keys: Tensor, values: Tensor, kv_cache: Tensor, layer_idx: int, slot_mapping: Tensor
) -> None:
    """
    Write each row's key and value into its slot of one layer, in place.

    keys and values [rows, kv_heads, head_dim]; slot_mapping [rows] holds
    `block_id * block_size + offset`, no slot twice. Other slots are not touched.
    """
    reference.write_kv(keys, values, kv_cache, layer_idx, slot_mapping)


def paged_attention(
    query: Tensor,
    kv_cache: Tensor,
    layer_idx: int,
    block_tables: Sequence[Tensor],
    num_query_rows: Sequence[int],
    context_lens: Sequence[int],
) -> Tensor:
    """
    Attend from every row to its sequence's earlier positions and itself.

    query [rows, heads, head_dim]; sequence s has `num_query_rows[s]` rows, which are its last
    positions, their keys and values already written. With its position p a row of head h yields
    `sum_j softmax_j(q . k_j / sqrt(head_dim)) v_j` over positions j <= p, read through
    `block_tables[s]` from KV head `h // (heads / kv_heads)`. Nothing at or past `context_lens[s]`
    is read, so the rest of the last block may hold anything. Returns the shape of query.
    """
    return reference.paged_attention(
        query, kv_cache, layer_idx, block_tables, num_query_rows, context_lens
    )
