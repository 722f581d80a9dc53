"""Sequences over a paged cache that is poison wherever nobody wrote, and what their bytes mean."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipstream.kernels.cpu.matrix import Floats
from slipstream.kernels.cpu.operations import Operations, Queries
from slipstream.kernels.cpu.paged_batch import BLOCK_SIZE, HeadSizes, PagedBatch, PagedRows
from slipstream.shared.model.packing import rotary_tables, widen_bf16

from .operation_cases import POISON, Poisoned

NUM_LAYERS = 2
LAYER_IDX = 1
_TILE_ROWS = 16
_LOG2E = np.log2(np.e)
_LONGEST = 1024

Wide = npt.NDArray[np.float64]
RowRange = tuple[int, int, int]  # a sequence, its first row, and where its rows end


def head_sizes(num_heads: int, num_kv_heads: int, head_dim: int, kv_format: str) -> HeadSizes:
    """Return sizes of two layers, of which only the second is used."""
    return HeadSizes(NUM_LAYERS, num_heads, num_kv_heads, head_dim, kv_format)


@dataclass
class Cache:
    """Random sequences, their projections, and the blocks that their keys and values lie in."""

    sizes: HeadSizes
    contexts: list[int]

    def __post_init__(self) -> None:
        """Scatter blocks; each sequence has one more than it needs, as granted ahead."""
        rng = np.random.default_rng(0)
        num_blocks = [context // BLOCK_SIZE + 2 for context in self.contexts]
        ends = np.cumsum(num_blocks)
        scattered = np.split(rng.permutation(int(ends[-1])), ends[:-1])
        self.tables = [part.tolist() for part in scattered]
        self.kv = np.full(self.sizes.block_bytes * int(ends[-1]), POISON, np.uint8)
        shape = (self.sizes.num_all_heads, self.sizes.head_dim)
        self.qkv = [
            rng.standard_normal((context, *shape)).astype(np.float32) * np.float32(2)
            for context in self.contexts
        ]
        theta = 10_000.0
        self.cosines, self.sines = rotary_tables(self.sizes.head_dim, theta, _LONGEST)
        mean_shape = (NUM_LAYERS, self.sizes.num_kv_heads, self.sizes.head_dim)
        self.key_means = rng.standard_normal(mean_shape).astype(np.float32)

    def batch(self, rows: list[RowRange]) -> PagedBatch:
        """Return rows as those of one step."""
        sequences = [PagedRows(end - first, first, self.tables[idx]) for idx, first, end in rows]
        return PagedBatch(self.sizes, self.kv, sequences, self.cosines, self.sines, self.key_means)

    def projection(self, rows: list[RowRange]) -> Floats:
        """Return their rows of the projection."""
        return np.concatenate([self.qkv[idx][first:end] for idx, first, end in rows])

    def all_rows(self) -> list[RowRange]:
        """Return those of every position."""
        return [(idx, 0, context) for idx, context in enumerate(self.contexts)]


def finish_heads(operations: Operations, cache: Cache, rows: list[RowRange]) -> Queries:
    """Write some rows into the cache; return their queries."""
    batch, poisoned = cache.batch(rows), Poisoned()
    shapes = Queries.empty(batch)
    out = Queries(
        poisoned.floats(*shapes.floats.shape),
        poisoned.bytes(*shapes.planes.shape),
        poisoned.floats(*shapes.scales.shape),
    )
    operations.finish_heads(batch, LAYER_IDX, cache.projection(rows), out)
    poisoned.check()
    return out


def attend(operations: Operations, cache: Cache, rows: list[RowRange]) -> Floats:
    """Let rows attend to their sequences, whose keys and values are written."""
    queries = finish_heads(operations, cache, rows)
    batch, poisoned = cache.batch(rows), Poisoned()
    out = poisoned.floats(batch.num_rows, cache.sizes.num_heads, cache.sizes.head_dim)
    operations.attend(batch, LAYER_IDX, queries, out)
    poisoned.check()
    return out


def float_cache(cache: Cache) -> Floats:
    """Return [blocks, layers, 2, kv_heads, block_size, head_dim]; of bf16 a copy, widened."""
    sizes = cache.sizes
    shape = (-1, NUM_LAYERS, 2, sizes.num_kv_heads, BLOCK_SIZE, sizes.head_dim)
    if sizes.kv_format == "bf16":
        return widen_bf16(cache.kv.view(np.uint16)).reshape(shape)
    return cache.kv.view(np.float32).reshape(shape)


@dataclass(frozen=True)
class CodedCache:
    """What int8 blocks hold: codes [blocks, layers, kv_heads, slots, dim], scales without dim."""

    keys: npt.NDArray[np.int8]
    values: npt.NDArray[np.int8]
    key_scales: Floats
    value_scales: Floats

    @classmethod
    def of(cls, cache: Cache) -> "CodedCache":
        """Take the bytes apart as `model.h` says."""
        sizes, dim = cache.sizes, cache.sizes.head_dim
        parts = cache.kv.reshape(-1, NUM_LAYERS, sizes.num_kv_heads, 2 * BLOCK_SIZE * (dim + 4))
        outer, size = parts.shape[:3], BLOCK_SIZE * dim
        keys = parts[..., :size].view(np.int8).reshape(*outer, 2, dim // 4, 16, 4)
        values = parts[..., size : 2 * size].view(np.int8).reshape(*outer, 8, dim, 4)
        scales = np.ascontiguousarray(parts[..., 2 * size :]).view(np.float32)
        return cls(
            keys.transpose(0, 1, 2, 3, 5, 4, 6).reshape(*outer, BLOCK_SIZE, dim),
            values.transpose(0, 1, 2, 3, 5, 4).reshape(*outer, BLOCK_SIZE, dim),
            scales[..., :BLOCK_SIZE],
            scales[..., BLOCK_SIZE:],
        )

    def of_sequence(self, table: list[int], num_positions: int) -> "CodedCache":
        """Return the same of one sequence's positions: [positions, kv_heads, dim]."""

        def gather(each: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
            by_position = np.moveaxis(each[table, LAYER_IDX], 2, 1)
            return by_position.reshape(-1, *by_position.shape[2:])[:num_positions]

        return CodedCache(*map(gather, vars(self).values()))  # type: ignore[arg-type]


def unpacked_queries(queries: Queries, sizes: HeadSizes, row_counts: list[int]) -> Wide:
    """
    Return int8 queries as numbers [rows, heads, dim] whose dot products with keys are scores.

    They lie group by group: as many rows of a sequence as fit a tile with their heads.
    """
    heads_each = sizes.num_heads // sizes.num_kv_heads
    rows_each = max(1, _TILE_ROWS // heads_each)
    groups = [
        min(rows_each, count - first)
        for count in row_counts
        for first in range(0, count, rows_each)
    ]
    found, first = [], 0
    for num_rows in groups:
        shape = (sizes.num_kv_heads, num_rows, heads_each)
        size = int(np.prod(shape))
        planes = queries.planes[2 * first * sizes.head_dim :][: 2 * size * sizes.head_dim]
        low, high = np.moveaxis(
            planes.astype(np.float64).reshape(shape[0], 2, *shape[1:], sizes.head_dim), 1, 0
        )
        scales = queries.scales[first : first + size].astype(np.float64).reshape(*shape, 1)
        numbers = (low + 256 * high) * scales
        found.append(np.moveaxis(numbers, 0, 1).reshape(num_rows, -1, sizes.head_dim))
        first += size
    return np.concatenate(found) / _LOG2E
