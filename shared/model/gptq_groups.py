"""
Round a matrix to 4 bits in groups of input columns, so that the error of its outputs is small.

Columns are rounded in the order they stand in, see `gptq.py` for how; the strongest should come
first. A group's grid is chosen when its first column is reached, for weights that already make up
for the columns before (Frantar et al., "GPTQ", ICLR 2023, section 4, "grouping"). When all are
rounded, each is looked at again (`coordinate_descent.py`).
"""

import numpy as np
import numpy.typing as npt

from slipstream.kernels.cpu.matrix import GROUP
from slipstream.shared.model.coordinate_descent import Descent
from slipstream.shared.model.gptq import damped_moments, inverse_factor
from slipstream.shared.model.int4_grid import (
    MIDDLE_CODE,
    NUM_LEVELS,
    IntegerGrid,
    row_scales,
)

_NUM_ROWS = 2048  # so many at a time stay in the cache
_HEADROOM = 1.3  # columns grow by the errors that they make good
_LIMIT = 30000.0  # of a group's lowest and highest integers
# Shares of a group's range that are tried: clipping a few weights makes all others finer.
_RANGES = np.linspace(1.0, 0.6, 17).tolist()

Matrix = npt.NDArray[np.float64]
Columns = npt.NDArray[np.float32]  # [k, rows]: an input column lies together


def quantize_groups(weights: Matrix, moments: Matrix | None) -> IntegerGrid:
    """
    Return the integers of weights [n, k].

    `moments` [k, k] are the sums of products of the inputs; None rounds each weight for itself.
    """
    moments = np.eye(weights.shape[1]) if moments is None else moments
    return _quantize(weights, moments, _HEADROOM)


def _quantize(weights: Matrix, moments: Matrix, headroom: float) -> IntegerGrid:
    num_outputs, num_inputs = weights.shape
    factor = inverse_factor(moments).astype(np.float32)
    damped = damped_moments(moments).astype(np.float32)
    scales = row_scales(weights, headroom)
    codes = np.empty((num_outputs, num_inputs), np.uint8)
    factors = np.empty((num_outputs, num_inputs // GROUP), np.int16)
    middles = np.empty_like(factors)
    for first in range(0, num_outputs, _NUM_ROWS):
        rows = slice(first, first + _NUM_ROWS)
        columns = np.ascontiguousarray((weights[rows] / scales[rows, None]).T, np.float32)
        rounded = _round(columns.copy(), factor)
        Descent(columns, *rounded, damped).run()
        codes[rows], factors[rows], middles[rows] = (part.T for part in rounded)
    result = IntegerGrid(codes, factors, middles, scales)
    if result.can_overflow():
        # Making good let a row grow beyond its headroom.
        return _quantize(weights, moments, 2.0 * headroom)
    return result


def _round(columns: Columns, factor: Columns) -> tuple[Columns, Columns, Columns]:
    """Return codes [k, rows], factors and middles [k / 32, rows]; the columns are overwritten."""
    num_inputs, num_rows = columns.shape
    codes = np.empty_like(columns)
    factors = np.empty((num_inputs // GROUP, num_rows), np.float32)
    middles = np.empty_like(factors)
    for group, first in enumerate(range(0, num_inputs, GROUP)):
        end = first + GROUP
        importance = 1.0 / np.diag(factor)[first:end] ** 2
        step, lowest = _best_grid(columns[first:end], importance)
        factors[group], middles[group] = step, lowest + MIDDLE_CODE * step
        errors = np.empty((GROUP, num_rows), np.float32)
        for i, error in enumerate(errors, first):
            codes[i] = np.clip(np.rint((columns[i] - lowest) / step), 0, NUM_LEVELS - 1)
            np.divide(columns[i] - (lowest + step * codes[i]), factor[i, i], out=error)
            columns[i + 1 : end] -= factor[i, i + 1 : end, None] * error
        columns[end:] -= factor[first:end, end:].T @ errors
    return codes, factors, middles


def _best_grid(
    group: Columns, importance: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return whole steps and lowest values [rows] with the smallest error of those tried."""
    low, high = group.min(axis=0), group.max(axis=0)
    best_error = np.full(len(low), np.inf, np.float32)
    best_step, best_lowest = np.ones_like(low), np.zeros_like(low)
    for share in _RANGES:
        middle, half = (high + low) / 2, (high - low) / 2 * share
        ends = (np.clip(middle + sign * half, -_LIMIT, _LIMIT) for sign in (-1, 1))
        lowest, highest = (np.rint(end) for end in ends)
        step = np.maximum(np.rint((highest - lowest) / (NUM_LEVELS - 1)), 1.0)
        codes = np.clip(np.rint((group - lowest) / step), 0, NUM_LEVELS - 1)
        error = importance @ np.square(group - (lowest + step * codes))
        is_better = error < best_error
        best_error = np.where(is_better, error, best_error)
        best_step = np.where(is_better, step, best_step)
        best_lowest = np.where(is_better, lowest, best_lowest)
    return best_step, best_lowest
