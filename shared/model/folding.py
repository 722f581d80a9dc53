"""
Change a model's weights so that they round better and compute the same.

Where only linear things lie between two matrices, what the first makes can be turned or scaled, and
the second takes that back. The moments of what lies between change likewise.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.packing import rotate_columns

if TYPE_CHECKING:
    from slipstream.shared.model.calibration import Calibration  # which needs torch

_SMALLEST = 1e-6  # of the mean: what is never seen is not scaled without limit

Weights = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float64]
Tensors = dict[str, Weights]


def folded(
    tensors: Tensors, found: "Calibration", config: ModelConfig
) -> tuple[Tensors, "Calibration"]:
    """Return weights of the same model, and what its activations then are like."""
    tensors, moments = dict(tensors), dict(found.moments)
    for layer_idx in range(config.num_layers):
        prefix, name = f"model.layers.{layer_idx}.", f"layers.{layer_idx}."
        _turn_values(tensors, moments, prefix + "self_attn.", name + "output", config.head_dim)
        _balance_units(tensors, moments, prefix + "mlp.", name + "down")
    strengths = {name: np.diag(values) for name, values in moments.items()}
    return tensors, replace(found, moments=moments, strengths=strengths)


def _turn_values(
    tensors: Tensors, moments: dict[str, Weights], prefix: str, name: str, head_dim: int
) -> None:
    """
    Turn values by a Hadamard transform of the head, which spreads outliers over its dimensions.

    Attention mixes whole values, so the output projection can turn them back. Ashkboos et al.,
    "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs", NeurIPS 2024, section 4.
    """
    values, output = f"{prefix}v_proj.weight", f"{prefix}o_proj.weight"

    def turn(matrix: Weights) -> Matrix:
        return rotate_columns(matrix.astype(np.float64), head_dim)

    tensors[values] = _float32(turn(tensors[values].T).T)
    tensors[output] = _float32(turn(tensors[output]))
    moments[name] = _float32(rotate_columns(turn(moments[name]).T, head_dim))


def _balance_units(tensors: Tensors, moments: dict[str, Weights], prefix: str, name: str) -> None:
    """
    Scale the hidden units, rows of up and columns of down.

    A unit x with the column w costs mean(x^2) where weights are rounded and |w|^2 where activations
    are. Over all units the sums of x^2 / s^2 and w^2 s^2, hence of both errors, have the smallest
    product with s^2 = |x| / |w|. The idea is that of Xiao et al., "SmoothQuant", ICML 2023.
    """
    up, down = f"{prefix}up_proj.weight", f"{prefix}down_proj.weight"
    strengths = _floored(np.diag(moments[name]).astype(np.float64))
    squares = _floored(np.square(tensors[down], dtype=np.float64).sum(axis=0))
    scales = (strengths / squares) ** 0.25
    scales /= np.exp(np.log(scales).mean())
    tensors[up] = _float32(tensors[up] / scales[:, None])
    tensors[down] = _float32(tensors[down] * scales)
    moments[name] = _float32(moments[name] / np.outer(scales, scales))


def _floored(values: Matrix) -> Matrix:
    floored: Matrix = np.maximum(values, _SMALLEST * values.mean() + np.finfo(np.float32).tiny)
    return floored


def _float32(values: Matrix) -> Weights:
    return np.ascontiguousarray(values, np.float32)
