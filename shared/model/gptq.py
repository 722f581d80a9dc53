"""
Round a matrix to integers so that the error of its outputs, not of its entries, is small.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers",
ICLR 2023, algorithm 1: the rounding error of an input column is made good by the columns after it,
weighted by the inputs' second moments. The strongest inputs come first, while many columns are left
to make their errors good (the option `act_order` of the authors' program).
"""

import numpy as np
import numpy.typing as npt

_BLOCK = 32  # columns whose errors are spread at once
_NUM_ROWS = 2048  # so many at a time stay in the cache
_DAMPING = 0.01  # of the mean of the diagonal: keeps the factorization stable

Matrix = npt.NDArray[np.float64]
Columns = npt.NDArray[np.float32]  # [k, rows]: an input column lies together


def quantize_rows(
    weights: Matrix, moments: Matrix | None
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """
    Return codes [n, k] and a scale for each row, weights ~ codes * scale.

    `moments` [k, k] are the sums of products of the inputs; None rounds to nearest.
    """
    scales = np.abs(weights).max(axis=1) / 127.0
    scales[scales == 0.0] = 1.0
    # What the kernel multiplies by is the float32 value.
    scales = scales.astype(np.float32)
    scaled = weights / scales[:, None].astype(np.float64)
    if moments is None:
        return np.clip(np.rint(scaled), -127, 127).astype(np.int8), scales
    return _compensated(scaled, moments), scales


def _compensated(scaled: Matrix, moments: Matrix) -> npt.NDArray[np.int8]:
    order = np.argsort(-np.diag(moments), kind="stable")
    factor = inverse_factor(moments[np.ix_(order, order)]).astype(np.float32)
    codes = np.empty(scaled.shape, np.int8)
    for first in range(0, len(scaled), _NUM_ROWS):
        rows = slice(first, first + _NUM_ROWS)
        columns = np.ascontiguousarray(scaled[rows, order].T, np.float32)
        codes[rows, order] = _round_in_order(columns, factor).T
    return codes


def damped_moments(moments: Matrix) -> Matrix:
    """Return moments that can be factored: every input counts a little for itself."""
    diagonal = np.diag(moments)
    damped: Matrix = moments + np.eye(len(moments)) * (_DAMPING * np.mean(diagonal) + 1e-12)
    return damped


def inverse_factor(moments: Matrix) -> Matrix:
    """Return the upper Cholesky factor U of the inverse of the damped moments, U^T U."""
    damped = damped_moments(moments)
    # From the last column to the first the lower factor is an upper one, whose inverse is U.
    factor: Matrix = np.linalg.inv(np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1])
    return factor


def _round_in_order(columns: Columns, factor: npt.NDArray[np.float32]) -> Columns:
    """Return integers for the columns [k, rows], which are overwritten."""
    codes = np.empty_like(columns)
    for first in range(0, len(columns), _BLOCK):
        end = min(first + _BLOCK, len(columns))
        errors = np.empty((end - first, columns.shape[1]), np.float32)
        for i, error in enumerate(errors, first):
            np.clip(np.rint(columns[i]), -127, 127, out=codes[i])
            np.divide(columns[i] - codes[i], factor[i, i], out=error)
            columns[i + 1 : end] -= factor[i, i + 1 : end, None] * error
        columns[end:] -= factor[first:end, end:].T @ errors
    return codes
