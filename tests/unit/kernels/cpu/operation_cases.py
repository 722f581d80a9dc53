"""Operations of single rows, with poison around what they write, in one form for all tests."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.kernels.cpu.matrix import GROUP, QUAD, Floats, Matrix
from slipstream.kernels.cpu.operations import (
    Operations,
    Quantized,
    aligned_bytes,
)
from slipstream.shared.model.int4_grid import IntegerGrid
from slipstream.shared.model.packing import pack_bf16, pack_float32, pack_int4, pack_int8

POISON = 0xFF  # NaN in float32
_GUARD = 192  # bytes in front of an output and behind it
EPSILON = 1e-5
NUM_COLUMNS = 77  # fills no tile: n is 96

Rows = dict[str, npt.NDArray[Any]]  # Any: floats and integers; what belongs to a row, by name


class Poisoned:
    """Outputs that are poison before they are written, and stand in poison."""

    def __init__(self) -> None:
        self._outputs: list[tuple[npt.NDArray[np.uint8], int]] = []

    def floats(self, *shape: int, num_written: int | None = None) -> Floats:
        """Return an output of which `num_written` rows (by default all) will be written."""
        return (
            self._output(np.dtype(np.float32), shape, num_written).view(np.float32).reshape(shape)
        )

    def bytes(self, *shape: int, num_written: int | None = None) -> npt.NDArray[np.int8]:
        """Return the same of bytes."""
        return self._output(np.dtype(np.int8), shape, num_written).view(np.int8).reshape(shape)

    def quantized(self, num_rows: int, num_inputs: int, num_outliers: int) -> Quantized:
        """Return planes, of which the rows that fill up the last tile stay as they are."""
        padded = -(-num_rows // 32) * 32
        return Quantized(
            self.bytes(padded, num_inputs, num_written=num_rows),
            self.bytes(padded, num_outliers, num_written=num_rows),
            self.floats(num_rows),
        )

    def check(self) -> None:
        """Fail when a byte was written that belongs to no output."""
        for buffer, num_written in self._outputs:
            around = np.concatenate([buffer[:_GUARD], buffer[_GUARD + num_written :]])
            assert (around == POISON).all(), "bytes beyond the output were written"

    def _output(
        self, dtype: npt.DTypeLike, shape: tuple[int, ...], num_written: int | None
    ) -> npt.NDArray[np.uint8]:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        buffer = aligned_bytes(size + 2 * _GUARD).view(np.uint8)
        buffer[:] = POISON
        rows = shape[0] if num_written is None else num_written
        self._outputs.append((buffer, size // max(shape[0], 1) * rows))
        return buffer[_GUARD : _GUARD + size]


@dataclass(frozen=True)
class Case:
    """An operation on rows of `num_inputs` floats."""

    name: str
    num_inputs: int
    run: Callable[[Operations, Floats, Poisoned], Rows]

    def of(self, operations: Operations, x: Floats) -> Rows:
        """Run it in the midst of poison."""
        poisoned = Poisoned()
        found = self.run(operations, x, poisoned)
        poisoned.check()
        return found

    def __str__(self) -> str:
        return self.name


def random_rows(num_rows: int, num_inputs: int, seed: int = 0) -> Floats:
    """Return rows of different sizes whose first inputs are strong."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((num_rows, num_inputs)) * rng.uniform(0.1, 10, (num_rows, 1))
    rows[:, :5] *= 40
    return rows.astype(np.float32)


def order(num_inputs: int) -> npt.NDArray[np.int32]:
    """Return an order of inputs with the first five in front."""
    others = np.random.default_rng(3).permutation(np.arange(5, num_inputs))
    return np.concatenate([np.arange(5), others]).astype(np.int32)


@dataclass(frozen=True)
class CodedMatrix:
    """A random matrix: packed, and as its integers in the order of the packed inputs."""

    name: str
    codes: npt.NDArray[np.signedinteger[Any]]
    scales: Floats
    packed: Matrix

    def __str__(self) -> str:
        return self.name

    @property
    def columns(self) -> npt.NDArray[np.int32]:
        """Which input stands at each place."""
        if self.packed.columns is not None:
            return self.packed.columns
        return np.arange(self.packed.num_inputs, dtype=np.int32)

    @property
    def outliers(self) -> npt.NDArray[np.intp]:
        """The places whose inputs have 16 bits."""
        if self.packed.outliers is None:
            return np.arange(self.packed.num_outliers)
        return (self.packed.outliers[:, None] * 4 + np.arange(4)).ravel()

    def scaled_by_one(self) -> Matrix:
        """Return the matrix of the integers themselves."""
        return replace(self.packed, scales=np.ones(self.packed.num_outputs, np.float32))

    @classmethod
    def random(
        cls, num_outputs: int, num_inputs: int, *, has_outliers: bool = False, hadamard: int = 0
    ) -> "CodedMatrix":
        rng = np.random.default_rng(num_inputs)
        codes = rng.integers(-127, 128, (num_outputs, num_inputs), np.int8)
        scales = rng.uniform(1e-3, 1e-2, num_outputs).astype(np.float32)
        columns = order(num_inputs) if has_outliers else None
        parts = pack_int8(codes, scales, columns)
        name = "int8" + ("_outliers" if has_outliers else "") + ("_rotated" if hadamard else "")
        return cls(name, codes, scales, Matrix(**parts, hadamard=hadamard))

    @classmethod
    def random_int4(
        cls, num_outputs: int, num_inputs: int, which: str, *, is_extreme: bool = False
    ) -> "CodedMatrix":
        """
        Return a matrix of 4 bits; `which` inputs are outliers: front (ordered), some, all or none.

        An extreme one has the largest integers, sums and codes that there may be.
        """
        rng = np.random.default_rng(num_inputs)
        shape = (num_outputs, num_inputs // GROUP)
        codes = rng.integers(0, 16, (num_outputs, num_inputs), np.uint8)
        factors, middles = rng.integers(0, 300, shape), rng.integers(-3000, 3000, shape)
        if is_extreme:
            codes = np.where(rng.random(codes.shape) < 0.5, 0, 15).astype(np.uint8)  # a coin
            codes[:, :GROUP] = 0
            codes[:, GROUP : 2 * GROUP] = 15
            factors[:], middles[:] = 2000, -1500
        scales = rng.uniform(1e-6, 1e-5, num_outputs).astype(np.float32)
        grid = IntegerGrid(codes, factors.astype(np.int16), middles.astype(np.int16), scales)
        assert not grid.can_overflow()
        num_quads = num_inputs // QUAD
        quads = {
            "front": np.arange(16),
            "some": np.sort(rng.permutation(num_quads)[:16]),
            "all": np.arange(num_quads),
            "none": np.arange(0),
        }[which]
        columns = order(num_inputs) if which == "front" else None
        parts = pack_int4(grid, quads.astype(np.int32), columns)
        name = f"int4_{which}" + ("_extreme" if is_extreme else "")
        return cls(name, grid.integers(), scales, Matrix(**parts))


def float_matrix(num_outputs: int, num_inputs: int) -> Floats:
    """Return random weights."""
    rng = np.random.default_rng(num_inputs)
    return rng.standard_normal((num_outputs, num_inputs)).astype(np.float32)


PLAIN = CodedMatrix.random(NUM_COLUMNS, 192)
WITH_OUTLIERS = CodedMatrix.random(NUM_COLUMNS, 192, has_outliers=True)
ROTATED = CodedMatrix.random(NUM_COLUMNS, 256, hadamard=128)
INT4 = [
    *(CodedMatrix.random_int4(NUM_COLUMNS, 192, which) for which in ("front", "some", "none")),
    CodedMatrix.random_int4(NUM_COLUMNS, 256, "all"),
    CodedMatrix.random_int4(NUM_COLUMNS, 256, "all", is_extreme=True),
]
CODED = [PLAIN, WITH_OUTLIERS, ROTATED, *INT4]
FLOATS = float_matrix(NUM_COLUMNS, 83)
NORM = np.random.default_rng(5).uniform(0.5, 1.5, 96).astype(np.float32)


def quantize(operations: Operations, x: Floats, poisoned: Poisoned, of: CodedMatrix) -> Quantized:
    """Quantize rows for a matrix."""
    out = poisoned.quantized(*x.shape, of.packed.num_outliers)
    return operations.quantize(x, of.packed, out)


def integers_of(rows: Quantized, of: CodedMatrix) -> npt.NDArray[np.int32]:
    """Return the integers that both planes stand for, without the padding."""
    integers = rows.low[: len(rows.scales)].astype(np.int32)
    integers[:, of.outliers] += 256 * rows.high[: len(rows.scales)].astype(np.int32)
    return integers


def _quantize_case(of: CodedMatrix) -> Case:
    def run(operations: Operations, x: Floats, poisoned: Poisoned) -> Rows:
        rows = quantize(operations, x, poisoned, of)
        return {"integers": integers_of(rows, of), "scales": rows.scales}

    return Case(f"quantize_{of}", of.packed.num_inputs, run)


def _linear_case(of: CodedMatrix) -> Case:
    def run(operations: Operations, x: Floats, poisoned: Poisoned) -> Rows:
        rows = quantize(operations, x, poisoned, of)
        out = poisoned.floats(len(x), NUM_COLUMNS)
        return {"outputs": operations.linear(rows, [of.packed], NUM_COLUMNS, out)}

    return Case(f"linear_{of}", of.packed.num_inputs, run)


def _rms_norm(operations: Operations, x: Floats, poisoned: Poisoned) -> Rows:
    return {"outputs": operations.rms_norm(x, NORM, EPSILON, poisoned.floats(*x.shape))}


def _float_case(name: str, matrix: Matrix) -> Case:
    def run(operations: Operations, x: Floats, poisoned: Poisoned) -> Rows:
        out = poisoned.floats(len(x), NUM_COLUMNS)
        return {"outputs": operations.linear(x, [matrix], NUM_COLUMNS, out)}

    return Case(name, matrix.num_inputs, run)


def _silu(operations: Operations, x: Floats, poisoned: Poisoned) -> Rows:
    return {"outputs": operations.silu_and_multiply(x, poisoned.floats(len(x), x.shape[1] // 2))}


def _add(operations: Operations, x: Floats, poisoned: Poisoned) -> Rows:
    out = poisoned.floats(*x.shape)
    out[:] = 1.5
    return {"outputs": operations.add(x, out)}


CASES = [
    Case("rms_norm", 96, _rms_norm),
    Case("silu_and_multiply", 2 * 80, _silu),
    Case("add", 48, _add),
    _float_case("linear_float32", Matrix(**pack_float32(FLOATS))),
    _float_case("linear_bf16", Matrix(**pack_bf16(FLOATS))),
    *(_quantize_case(of) for of in CODED),
    *(_linear_case(of) for of in CODED),
]
