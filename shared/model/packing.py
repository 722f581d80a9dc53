"""How matrices are laid out for the native kernels (`kernels/cpu/model.h` reads it)."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from slipstream.kernels.cpu.matrix import GROUP, NUM_OUTLIERS, TILE
from slipstream.shared.model.int4_grid import IntegerGrid
from slipstream.shared.model.packed_file import Array

# Raised when the layout or its meaning changes: older files are made again.
PACKING_VERSION = 2

PAIR = 32  # output columns that are computed together
HADAMARD = 128  # block of the rotation before the down projection

Weights = npt.NDArray[np.float32]
Bf16 = npt.NDArray[np.uint16]  # the upper half of a float32's bits
Codes = npt.NDArray[np.int8]

_UPPER = 16  # bits of a float32 that bf16 keeps
_HALF_BELOW = 0x7FFF  # just less than half of its last place
_QUIET = 0x40  # the bit of a NaN that is not all in the lower half


def pack_float32(weights: Weights) -> dict[str, Array]:
    """Return [n/16][k][16] of a matrix [n, k]."""
    padded = _padded(weights)
    tiles = padded.reshape(-1, TILE, padded.shape[1]).transpose(0, 2, 1)
    return {"weights": np.ascontiguousarray(tiles, np.float32)}


def pack_bf16(weights: Weights) -> dict[str, Array]:
    """Return the same rounded to bf16."""
    return {name: round_to_bf16(tiles) for name, tiles in pack_float32(weights).items()}


def round_to_bf16(values: Weights) -> Bf16:
    """Round to the nearest bf16, ties to even, as the kernels do it; a NaN stays one."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    upper = bits >> _UPPER
    rounded = (bits + _HALF_BELOW + (upper & 1)) >> _UPPER
    return np.where(np.isnan(values), upper | _QUIET, rounded).astype(np.uint16)


def widen_bf16(values: Bf16) -> Weights:
    """Return the float32 numbers that they are."""
    return (values.astype(np.uint32) << _UPPER).view(np.float32)


def pack_int8(
    codes: Codes, scales: npt.NDArray[np.float32], columns: npt.NDArray[np.int32] | None
) -> dict[str, Array]:
    """
    Return [n/16][k/4][16][4] of codes [n, k], with what turns sums into numbers.

    `columns` is the order of the input columns that the codes are in, the strongest first.
    """
    padded = _padded(codes)
    num_outputs, num_inputs = padded.shape
    tiles = padded.reshape(-1, TILE, num_inputs // 4, 4).transpose(0, 2, 1, 3)
    wide = padded.astype(np.int32)
    packed: dict[str, Array] = {
        "weights": np.ascontiguousarray(tiles),
        "scales": np.concatenate(
            [scales, np.zeros(num_outputs - len(scales), np.float32)], dtype=np.float32
        ),
        "sums": wide.sum(axis=1, dtype=np.int32),
    }
    if columns is not None:
        packed["columns"] = columns.astype(np.int32)
        packed["outlier_sums"] = wide[:, :NUM_OUTLIERS].sum(axis=1, dtype=np.int32)
    return packed


def pack_int4(
    grid: IntegerGrid, outliers: npt.NDArray[np.int32], columns: npt.NDArray[np.int32] | None = None
) -> dict[str, Array]:
    """
    Return [n/16][k/32][5][64] bytes: four lines of codes, and one of factors and middles.

    `outliers` are the fours of input columns that keep 16 bits, by their places; `columns` is the
    order of the input columns that the codes are in, if that is not their own.
    """
    num_groups = grid.codes.shape[1] // GROUP
    # [tile][column][group][line][half][input] to [tile][group][line][column][input]
    codes = _padded(grid.codes).reshape(-1, TILE, num_groups, 4, 2, 4)
    lines = (codes[..., 0, :] | codes[..., 1, :] << 4).transpose(0, 2, 3, 1, 4)
    pairs = _padded(np.stack([grid.factors, grid.middles], axis=2).reshape(len(grid.codes), -1))
    params = pairs.reshape(-1, TILE, num_groups, 2).transpose(0, 2, 1, 3)
    as_bytes = np.ascontiguousarray(params, "<i2").view(np.uint8).reshape(*params.shape[:2], 1, 64)
    packed: dict[str, Array] = {
        "weights": np.concatenate([lines.reshape(*params.shape[:2], 4, 64), as_bytes], axis=2),
        "scales": _padded(grid.scales[:, None])[:, 0],
        "outliers": outliers.astype(np.int32),
    }
    if columns is not None:
        packed["columns"] = columns.astype(np.int32)
    return packed


def interleave(gate: Weights, up: Weights) -> Weights:
    """Return the rows of both in alternating tiles: a pair holds gate and up of 16 units."""
    tiles = [part.reshape(-1, TILE, part.shape[1]) for part in (gate, up)]
    return np.stack(tiles, axis=1).reshape(-1, gate.shape[1])


def hadamard_matrix(size: int) -> npt.NDArray[np.float64]:
    """Return the orthonormal Walsh-Hadamard matrix of a power of two."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    scaled: npt.NDArray[np.float64] = matrix / np.sqrt(size)
    return scaled


def rotate_columns(matrix: npt.NDArray[np.float64], block: int) -> npt.NDArray[np.float64]:
    """Turn the columns by a Hadamard transform, block by block."""
    blocks = matrix.reshape(len(matrix), -1, block)
    return (blocks @ hadamard_matrix(block)).reshape(matrix.shape)


def takes_rotation(name: str, num_inputs: int) -> bool:
    """Tell whether the inputs of a matrix of integers are rotated, if none of them are outliers."""
    return name.endswith("down") and not num_inputs % HADAMARD


def rotary_tables(
    head_dim: int, theta: float, num_positions: int, first_position: int = 0
) -> tuple[Weights, Weights]:
    """Return cosines and sines [num_positions, head_dim / 2] for `kernels.ops.rotary`."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies = (1.0 / np.float32(theta) ** exponents).astype(np.float32)
    positions = np.arange(first_position, first_position + num_positions, dtype=np.float32)
    angles = positions[:, None] * frequencies[None, :]
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def named(prefix: str, parts: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays of one matrix under its name."""
    return {f"{prefix}.{name}": values for name, values in parts.items()}


def _padded(values: Array) -> Array:
    missing = -len(values) % PAIR
    if not missing:
        return values
    return np.concatenate([values, np.zeros((missing, values.shape[1]), values.dtype)])
