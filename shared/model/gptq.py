"""
Round a matrix to integers so that the error of its outputs, not of its entries, is small.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers",
ICLR 2023, algorithm 1: the rounding error of an input column is made good by the columns after it,
weighted by the inputs' second moments.
"""

import numpy as np
import numpy.typing as npt

_BLOCK = 64  # columns whose errors are spread at once
_DAMPING = 0.01  # of the mean of the diagonal: keeps the factorization stable

Matrix = npt.NDArray[np.float64]


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
        return _rounded(scaled), scales
    return _compensated(scaled, _inverse_factor(moments)), scales


def _rounded(scaled: Matrix) -> npt.NDArray[np.int8]:
    return np.clip(np.rint(scaled), -127, 127).astype(np.int8)


def _inverse_factor(moments: Matrix) -> Matrix:
    """Return the upper Cholesky factor of the inverse of the damped moments."""
    damped = moments + np.eye(len(moments)) * (_DAMPING * np.mean(np.diag(moments)) + 1e-12)
    inverse = np.linalg.inv(damped)
    return np.linalg.cholesky((inverse + inverse.T) / 2).T.astype(np.float64)


def _compensated(scaled: Matrix, factor: Matrix) -> npt.NDArray[np.int8]:
    remaining = scaled.copy()
    codes = np.empty(scaled.shape, np.int8)
    num_columns = scaled.shape[1]
    for first in range(0, num_columns, _BLOCK):
        end = min(first + _BLOCK, num_columns)
        errors = np.empty((len(scaled), end - first))
        for column in range(first, end):
            codes[:, column] = _rounded(remaining[:, column])
            error = (remaining[:, column] - codes[:, column]) / factor[column, column]
            remaining[:, column + 1 : end] -= np.outer(error, factor[column, column + 1 : end])
            errors[:, column - first] = error
        remaining[:, end:] -= errors @ factor[first:end, end:]
    return codes
