"""The operations of a step one at a time, over numpy arrays: for tests and benchmarks."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.kernels.cpu import structs
from slipstream.kernels.cpu.loader import NativeLibrary
from slipstream.kernels.cpu.paged_batch import PagedBatch

TILE = 16  # output columns of a tile
NUM_OUTLIERS = 64  # input columns that keep 16 bits
_ROWS_TOGETHER = 32  # planes of int8 rows have a multiple of so many
_GROUP = 32  # input columns of int4 with one scale
_QUAD = 4  # input columns that are multiplied together
_INT4 = 2
_LINE_BYTES = 64  # of a cache line: planes of queries begin with one
# What `model.h` calls weights of such arrays; bf16 comes as its bits, int4 as bytes.
_FORMATS = {"float32": 0, "int8": 1, "uint8": _INT4, "uint16": 3}

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]
Bf16 = npt.NDArray[np.uint16]  # their bits
Bytes = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A packed matrix [n, k] as `model.h` has it; n is a multiple of 32, k of 64 for integers."""

    # Float32 or bf16 (as uint16) [n/16, k, 16], int8 [n/16, k/4, 16, 4], or int4 (as uint8)
    # [n/16, k/32, 5, 64].
    weights: npt.NDArray[Any]
    scales: Floats | None = None  # [n], integers only, and so are the others
    sums: Integers | None = None  # [n], int8
    outlier_sums: Integers | None = None  # [n], int8 with `columns`
    columns: Integers | None = None  # [k], the 64 strongest in front
    outliers: Integers | None = None  # int4: fours of inputs with 16 bits, 16 of them or all
    hadamard: int = 0  # block in which inputs are rotated, 0 for none

    @property
    def format(self) -> int:
        """As `model.h` numbers them."""
        return _FORMATS[self.weights.dtype.name]

    @property
    def num_outputs(self) -> int:
        """Those of whole tiles: the last ones may be padding."""
        return len(self.weights) * TILE

    @property
    def num_inputs(self) -> int:
        """Columns of the matrix."""
        if self.format == _INT4:
            return int(self.weights.shape[1]) * _GROUP
        return int(self.weights[0].size) // TILE

    @property
    def num_outliers(self) -> int:
        """Inputs that keep 16 bits."""
        if self.outliers is not None:
            return len(self.outliers) * _QUAD
        return 0 if self.columns is None else NUM_OUTLIERS

    def as_struct(self) -> structs.Linear:
        """Return what the kernels take; it points into the arrays."""
        return structs.Linear(
            n=self.num_outputs,
            k=self.num_inputs,
            num_outliers=self.num_outliers,
            hadamard=self.hadamard,
            format=self.format,
            weights=_pointer(self.weights),
            scales=_pointer(self.scales),
            sums=_pointer(self.sums),
            outlier_sums=_pointer(self.outlier_sums),
            columns=_pointer(self.columns),
            # In front, or all of them, they need no list.
            outliers=_pointer(
                self.outliers
                if self.columns is None and 0 < self.num_outliers < self.num_inputs
                else None
            ),
        )


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

    library: NativeLibrary
    num_threads: int
    num_times: int = 1
    seconds: float = 0.0
    _engine: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        """Start the threads."""
        self._engine = self.library.new_engine(self.num_threads)

    def close(self) -> None:
        """End the threads."""
        if self._engine:
            self.library.free_engine(self._engine)
            self._engine = 0

    def embed(
        self, token_ids: Integers, table: Matrix | Floats | Bf16, out: Floats | None = None
    ) -> Floats:
        """Look up rows [tokens, hidden] in a table [vocab, hidden], or a packed output head."""
        if isinstance(table, Matrix):
            hidden, model = table.num_inputs, structs.Model(head=table.as_struct())
        else:
            hidden, model = table.shape[1], structs.Model(embedding=_pointer(table))
            model.head.format = _FORMATS[table.dtype.name]
        model.hidden = hidden
        out = np.empty((len(token_ids), hidden), np.float32) if out is None else out
        rows = (_pointer(token_ids), len(token_ids))
        self._run("embed", ctypes.byref(model), *rows, _pointer(out))
        return out

    def rms_norm(
        self, x: Floats, weight: Floats, epsilon: float, out: Floats | None = None
    ) -> Floats:
        """See `ops.rms_norm`; x [rows, n], n a multiple of 32."""
        out = np.empty_like(x) if out is None else out
        size = ctypes.c_float(epsilon)
        self._run(
            "rms_norm", _pointer(x), len(x), _pointer(weight), x.shape[1], size, _pointer(out)
        )
        return out

    def quantize(self, x: Floats, matrix: Matrix, out: Quantized | None = None) -> Quantized:
        """Return rows [rows, k] as a matrix of integers takes them: reordered or rotated."""
        out = Quantized.empty(len(x), matrix) if out is None else out
        planes = (_pointer(out.low), _pointer(out.high), _pointer(out.scales))
        linear = matrix.as_struct()
        self._run("quantize", ctypes.byref(linear), _pointer(x), len(x), *planes)
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
            rows = [_pointer(x.low), _pointer(x.high), _pointer(x.scales)]
        else:
            is_bf16 = matrices[0].weights.dtype == np.uint16
            name = "linear_bf16" if is_bf16 else "linear_float32"
            num_rows, rows = len(x), [_pointer(x)]
        out = np.empty((num_rows, num_columns), np.float32) if out is None else out
        self._run(name, linears, len(linears), *rows, num_rows, num_columns, _pointer(out))
        return out

    def silu_and_multiply(self, gate_up: Floats, out: Floats | None = None) -> Floats:
        """See `ops.silu_and_multiply`; [rows, 2 n] in tiles of 16 in turn, n a multiple of 16."""
        num_rows, num_units = len(gate_up), gate_up.shape[1] // 2
        out = np.empty((num_rows, num_units), np.float32) if out is None else out
        self._run("silu_and_multiply", _pointer(gate_up), num_rows, num_units, _pointer(out))
        return out

    def add(self, x: Floats, out: Floats) -> Floats:
        """Add x to `out`, both [rows, n], n a multiple of 16."""
        self._run("add", _pointer(x), *x.shape, _pointer(out))
        return out

    def finish_heads(
        self, batch: PagedBatch, layer_idx: int, qkv: Floats, out: Queries | None = None
    ) -> Queries:
        """
        Rotate a projection [rows, heads of q, k, v, dim]: keys and values go into the cache.

        Run i is about layer `layer_idx` + i, modulo their number, and so it is with `attend`.
        """
        out = Queries.empty(batch) if out is None else out
        queries = (_pointer(out.floats), _pointer(out.planes), _pointer(out.scales))
        work = (ctypes.byref(batch.model), ctypes.byref(batch.step), layer_idx)
        self._run("finish_heads", *work, _pointer(qkv), *queries)
        return out

    def attend(
        self, batch: PagedBatch, layer_idx: int, queries: Queries, out: Floats | None = None
    ) -> Floats:
        """See `ops.paged_attention`; returns [rows, heads, dim]."""
        sizes = batch.sizes
        if out is None:
            out = np.empty((batch.num_rows, sizes.num_heads, sizes.head_dim), np.float32)
        taken = (_pointer(queries.floats), _pointer(queries.planes), _pointer(queries.scales))
        work = (ctypes.byref(batch.model), ctypes.byref(batch.step), layer_idx)
        self._run("attend", *work, *taken, _pointer(out))
        return out

    def _run(self, name: str, *arguments: Any) -> None:  # Any: what ctypes takes
        assert self._engine, "the operations are closed"
        function = self.library.function(f"slipstream_{name}", ctypes.c_double)
        seconds = function(ctypes.c_void_p(self._engine), self.num_times, *arguments)
        if seconds < 0:
            raise MemoryError(f"no memory for {name}")
        self.seconds = seconds / self.num_times


def _pointer(values: npt.NDArray[Any] | None) -> ctypes.c_void_p | None:
    if values is None:
        return None
    assert values.flags.c_contiguous, "kernels take contiguous arrays"
    return ctypes.c_void_p(values.ctypes.data)
