"""A packed batch over a paged KV cache, for operations that are run one at a time."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipstream.kernels.cpu import structs

BLOCK_SIZE = 32
_ELEMENT_BYTES = {"float32": 4, "bf16": 2, "int8": 1}
_SCALE_BYTES = 4
_NUM_PARTS = 2  # keys and values

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """What attention needs to know of a model."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    kv_format: str

    @property
    def num_all_heads(self) -> int:
        """Those of queries, keys and values: a row of the projection."""
        return self.num_heads + 2 * self.num_kv_heads

    @property
    def head_bytes(self) -> int:
        """Bytes of a key, or a value, of one position and head; int8 has a scale with it."""
        scale_bytes = _SCALE_BYTES if self.kv_format == "int8" else 0
        return self.head_dim * _ELEMENT_BYTES[self.kv_format] + scale_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in all layers."""
        return self.num_layers * self.num_kv_heads * BLOCK_SIZE * _NUM_PARTS * self.head_bytes


@dataclass(frozen=True, slots=True)
class PagedRows:
    """A sequence's rows: its positions from `num_computed` on, in the blocks of its table."""

    num_rows: int
    num_computed: int
    block_table: Sequence[int]


class PagedBatch:
    """
    Sequences whose rows follow one another, and the cache that their blocks lie in.

    kv uint8 [blocks * block_bytes]; cosines and sines float32 [positions, head_dim / 2]; key_means
    float32 [layers, kv_heads, head_dim] are taken out of int8 keys.
    """

    def __init__(
        self,
        sizes: HeadSizes,
        kv: npt.NDArray[np.uint8],
        sequences: Sequence[PagedRows],
        cosines: Floats,
        sines: Floats,
        key_means: Floats | None = None,
    ) -> None:
        self.sizes = sizes
        self.num_rows = sum(rows.num_rows for rows in sequences)
        self._tables = np.array([b for rows in sequences for b in rows.block_table], np.int32)
        self._sequences = (structs.Sequence * len(sequences))()
        self._layers = (structs.Layer * sizes.num_layers)()
        self._kept = (kv, cosines, sines, key_means)  # what the structs point to
        first_row = first_block = 0
        for place, rows in zip(self._sequences, sequences, strict=True):
            place.first_row, place.num_rows = first_row, rows.num_rows
            place.num_computed, place.first_block = rows.num_computed, first_block
            first_row += rows.num_rows
            first_block += len(rows.block_table)
        if key_means is not None:
            for layer, mean in zip(self._layers, key_means, strict=True):
                layer.key_mean = mean.ctypes.data
        self.model = structs.Model(
            num_layers=sizes.num_layers,
            num_heads=sizes.num_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            kv_format=structs.FORMATS[sizes.kv_format],
            max_context=len(cosines),
            cosines=cosines.ctypes.data,
            sines=sines.ctypes.data,
            layers=ctypes.addressof(self._layers),
        )
        self.step = structs.Step(
            num_rows=self.num_rows,
            num_sequences=len(sequences),
            sequences=ctypes.addressof(self._sequences),
            block_tables=self._tables.ctypes.data,
            kv=kv.ctypes.data,
            block_bytes=sizes.block_bytes,
        )
