"""The operations of a step one at a time, over numpy arrays: for tests and benchmarks."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.kernels.cpu import structs
from slipstream.kernels.cpu.loader import NativeLibrary
from slipstream.kernels.cpu.matrix import FORMAT_OF_DTYPE, Floats, Integers, Matrix, pointer_to
from slipstream.kernels.cpu.paged_batch import PagedBatch

_ROWS_TOGETHER = 32  # planes of int8 rows have a multiple of so many
_LINE_BYTES = 64  # of a cache line: planes of queries begin with one

Bf16 = npt.NDArray[np.uint16]  # their bits
Bytes = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Quantized:
    """Rows in int8: scale * low, and of the outliers scale * (low + 256 * high)."""

    low: Bytes  # [rows to a multiple of 32, k]
    high: Bytes  # [rows to a multiple of 32, outliers]
    scales: Floats  # [rows]

    @classmethod
    def empty(cls, num_rows: int, matrix: Matrix) -> "Quantized":
        """Return memory for so many rows that a matrix takes."""
        padded = -(-num_rows // _ROWS_TOGETHER) * _ROWS_TOGETHER
        return cls(
            np.empty((padded, matrix.num_inputs), np.int8),
            np.empty((padded, matrix.num_outliers), np.int8),
            np.empty(num_rows, np.float32),
        )


@dataclass(frozen=True, slots=True)
class Queries:
    """What attention takes of the rows: floats, or planes of 16 bits with their scales for int8."""

    floats: Floats  # [rows, heads, dim], rotated, divided by sqrt(dim) * log 2
    planes: Bytes  # [group of rows][kv head][low, high][row of the group, head of the KV head][dim]
    scales: Floats  # the same without planes and dim

    @classmethod
    def empty(cls, batch: PagedBatch) -> "Queries":
        """Return memory for a batch, of the kind that its cache wants."""
        num_queries, dim = batch.num_rows * batch.sizes.num_heads, batch.sizes.head_dim
        is_int8 = batch.sizes.kv_format == "int8"
        num_floats, num_scales = (0, num_queries) if is_int8 else (num_queries, 0)
        return cls(
            np.empty((num_floats // batch.sizes.num_heads, batch.sizes.num_heads, dim), np.float32),
            aligned_bytes(2 * num_scales * dim),
            np.empty(num_scales, np.float32),
        )


def aligned_bytes(num_bytes: int) -> Bytes:
    """Return memory that begins with a cache line."""
    memory = np.empty(num_bytes + _LINE_BYTES, np.int8)
    first = -memory.ctypes.data % _LINE_BYTES
    return memory[first : first + num_bytes]


@dataclass
class Operations:
    """
    Runs operations on threads of its own: each `num_times`, and `seconds` is what one run took.

    Results go into `out` where it is given. All arrays are contiguous.
    """

    kernels: NativeLibrary
    num_threads: int
    num_times: int = 1
    seconds: float = 0.0
    _engine: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        """Start the threads."""
        self._engine = self.kernels.new_engine(self.num_threads)

    def close(self) -> None:
        """End the threads."""
        if self._engine:
            self.kernels.free_engine(self._engine)
            self._engine = 0

    def embed(
        self, token_ids: Integers, table: Matrix | Floats | Bf16, out: Floats | None = None
    ) -> Floats:
        """Look up rows [tokens, hidden] in a table [vocab, hidden], or a packed output head."""
        if isinstance(table, Matrix):
            hidden, model = table.num_inputs, structs.Model(head=table.as_struct())
        else:
            hidden, model = table.shape[1], structs.Model(embedding=pointer_to(table))
            model.head.format = structs.FORMATS[FORMAT_OF_DTYPE[table.dtype.name]]
        model.hidden = hidden
        out = np.empty((len(token_ids), hidden), np.float32) if out is None else out
        rows = (pointer_to(token_ids), len(token_ids))
        self._run("embed", ctypes.byref(model), *rows, pointer_to(out))
        return out

    def rms_norm(
        self, x: Floats, weight: Floats, epsilon: float, out: Floats | None = None
    ) -> Floats:
        """See `ops.rms_norm`; x [rows, n], n a multiple of 32."""
        out = np.empty_like(x) if out is None else out
        size = ctypes.c_float(epsilon)
        self._run(
            "rms_norm", pointer_to(x), len(x), pointer_to(weight), x.shape[1], size, pointer_to(out)
        )
        return out

    def quantize(self, x: Floats, matrix: Matrix, out: Quantized | None = None) -> Quantized:
        """Return rows [rows, k] as a matrix of integers takes them: reordered or rotated."""
        out = Quantized.empty(len(x), matrix) if out is None else out
        planes = (pointer_to(out.low), pointer_to(out.high), pointer_to(out.scales))
        linear = matrix.as_struct()
        self._run("quantize", ctypes.byref(linear), pointer_to(x), len(x), *planes)
        return out

    def linear(
        self,
        x: Floats | Quantized,
        matrices: Sequence[Matrix],
        num_columns: int,
        out: Floats | None = None,
    ) -> Floats:
        """
        Return the first `num_columns` of x W^T as floats, x [rows, k].

        Of several matrices of one size run i takes number i modulo their count.
        """
        linears = (structs.Linear * len(matrices))(*(matrix.as_struct() for matrix in matrices))
        if isinstance(x, Quantized):
            name, num_rows = "linear_quantized", len(x.scales)
            assert len(x.low) % _ROWS_TOGETHER == 0, "planes have whole tiles of rows"
            rows = [pointer_to(x.low), pointer_to(x.high), pointer_to(x.scales)]
        else:
            is_bf16 = matrices[0].weights.dtype == np.uint16
            name = "linear_bf16" if is_bf16 else "linear_float32"
            num_rows, rows = len(x), [pointer_to(x)]
        out = np.empty((num_rows, num_columns), np.float32) if out is None else out
        self._run(name, linears, len(linears), *rows, num_rows, num_columns, pointer_to(out))
        return out

    def silu_and_multiply(self, gate_up: Floats, out: Floats | None = None) -> Floats:
        """See `ops.silu_and_multiply`; [rows, 2 n] in tiles of 16 in turn, n a multiple of 16."""
        num_rows, num_units = len(gate_up), gate_up.shape[1] // 2
        out = np.empty((num_rows, num_units), np.float32) if out is None else out
        self._run("silu_and_multiply", pointer_to(gate_up), num_rows, num_units, pointer_to(out))
        return out

    def add(self, x: Floats, out: Floats) -> Floats:
        """Add x to `out`, both [rows, n], n a multiple of 16."""
        self._run("add", pointer_to(x), *x.shape, pointer_to(out))
        return out

    def finish_heads(
        self, batch: PagedBatch, layer_idx: int, qkv: Floats, out: Queries | None = None
    ) -> Queries:
        """
        Rotate a projection [rows, heads of q, k, v, dim]: keys and values go into the cache.

        Run i is about layer `layer_idx` + i, modulo their number, and so it is with `attend`.
        """
        out = Queries.empty(batch) if out is None else out
        queries = (pointer_to(out.floats), pointer_to(out.planes), pointer_to(out.scales))
        work = (ctypes.byref(batch.model), ctypes.byref(batch.step), layer_idx)
        self._run("finish_heads", *work, pointer_to(qkv), *queries)
        return out

    def attend(
        self, batch: PagedBatch, layer_idx: int, queries: Queries, out: Floats | None = None
    ) -> Floats:
        """See `ops.paged_attention`; returns [rows, heads, dim]."""
        sizes = batch.sizes
        if out is None:
            out = np.empty((batch.num_rows, sizes.num_heads, sizes.head_dim), np.float32)
        taken = (pointer_to(queries.floats), pointer_to(queries.planes), pointer_to(queries.scales))
        work = (ctypes.byref(batch.model), ctypes.byref(batch.step), layer_idx)
        self._run("attend", *work, *taken, pointer_to(out))
        return out

    def _run(self, name: str, *arguments: Any) -> None:  # Any: what ctypes takes
        assert self._engine, "the operations are closed"
        function = self.kernels.function(f"slipstream_{name}", ctypes.c_double)
        seconds = function(ctypes.c_void_p(self._engine), self.num_times, *arguments)
        if seconds < 0:
            raise MemoryError(f"no memory for {name}")
        self.seconds = seconds / self.num_times
