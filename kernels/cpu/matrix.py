"""Packed matrices as the kernels take them."""

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.kernels.cpu import structs

TILE = 16  # output columns of a tile
NUM_OUTLIERS = 64  # strongest input columns, whose activations keep 16 bits
GROUP = 32  # input columns of int4 with one factor and middle
QUAD = 4  # input columns that are multiplied together
# By the type of their arrays; bf16 comes as its bits, int4 as bytes.
FORMAT_OF_DTYPE = {"float32": "float32", "uint16": "bf16", "int8": "int8", "uint8": "int4"}

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]


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
    def format(self) -> str:
        """What the weights are kept in."""
        return FORMAT_OF_DTYPE[self.weights.dtype.name]

    @property
    def is_of_integers(self) -> bool:
        """Tell whether inputs are rounded for it."""
        return self.format in ("int8", "int4")

    @property
    def num_outputs(self) -> int:
        """Those of whole tiles: the last ones may be padding."""
        return len(self.weights) * TILE

    @property
    def num_inputs(self) -> int:
        """Columns of the matrix."""
        if self.format == "int4":
            return int(self.weights.shape[1]) * GROUP
        return int(self.weights[0].size) // TILE

    @property
    def num_outliers(self) -> int:
        """Inputs that keep 16 bits."""
        if self.outliers is not None:
            return len(self.outliers) * QUAD
        return 0 if self.columns is None else NUM_OUTLIERS

    def as_struct(self) -> structs.Linear:
        """Return what the kernels take; it points into the arrays."""
        return structs.Linear(
            n=self.num_outputs,
            k=self.num_inputs,
            num_outliers=self.num_outliers,
            hadamard=self.hadamard,
            format=structs.FORMATS[self.format],
            weights=pointer_to(self.weights),
            scales=pointer_to(self.scales),
            sums=pointer_to(self.sums),
            outlier_sums=pointer_to(self.outlier_sums),
            columns=pointer_to(self.columns),
            # In front, or all of them, they need no list.
            outliers=pointer_to(
                self.outliers
                if self.columns is None and 0 < self.num_outliers < self.num_inputs
                else None
            ),
        )


def pointer_to(values: npt.NDArray[Any] | None) -> ctypes.c_void_p | None:
    """Return where an array lies, which the caller keeps alive; None for none."""
    if values is None:
        return None
    assert values.flags.c_contiguous, "kernels take contiguous arrays"
    return ctypes.c_void_p(values.ctypes.data)
