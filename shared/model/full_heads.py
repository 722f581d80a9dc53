"""
A model whose query heads each have a KV head of their own: what sharing them saves is measured so.

The heads that a group of query heads shares are repeated for each of them. The outputs are the same
numbers, and KV takes as many times the memory as query heads share a head.
"""

import numpy as np

from slipstream.kernels.cpu.matrix import TILE
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.packed_file import Array, PackedArrays

# The arrays of a packed matrix with an entry an output; all others are of its inputs.
_OF_OUTPUTS = ("scales", "sums", "outlier_sums")


class FullHeads:
    """The packed arrays of a model, its KV heads repeated."""

    def __init__(self, packed: PackedArrays, config: ModelConfig) -> None:
        """`config` is the model's own, with the KV heads that the arrays have."""
        self._packed = packed
        queries = np.arange(config.num_heads)
        shared = np.repeat(np.arange(config.num_kv_heads), config.num_heads // config.num_kv_heads)
        keys = config.num_heads + shared
        self._kv_heads = shared
        self._heads = np.concatenate([queries, keys, keys + config.num_kv_heads])
        self._head_dim = config.head_dim

    def __getitem__(self, name: str) -> Array:
        return self._expanded(name, self._packed[name])

    def get(self, name: str) -> Array | None:
        """Return an array, or None where there is none of the name."""
        values = self._packed.get(name)
        return None if values is None else self._expanded(name, values)

    def _expanded(self, name: str, values: Array) -> Array:
        matrix, _, kind = name.rpartition(".")
        if kind == "key_mean":
            return values.reshape(-1, self._head_dim)[self._kv_heads]
        if not matrix.endswith(".qkv"):
            return values
        if kind == "weights":
            return self._repeated(values, self._head_dim // TILE)
        return self._repeated(values, self._head_dim) if kind in _OF_OUTPUTS else values

    def _repeated(self, values: Array, num_each: int) -> Array:
        """Return the entries of all heads, of which each has so many."""
        by_head = values.reshape(-1, num_each, *values.shape[1:])
        repeated: Array = by_head[self._heads].reshape(-1, *values.shape[1:])
        return repeated
