"""Weights that lie on a grid of 4 bits already, and the integers that the kernels take."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipstream.kernels.cpu.matrix import GROUP

NUM_LEVELS = 16
MIDDLE_CODE = 7  # the kernels multiply (code - 7)
_MAX_WEIGHT = 32639  # `kMaxInt4Weight`: plus 128 it has 16 bits
_USED_WEIGHT = 32000  # the largest that is aimed at: rounding may add to it
_MAX_SUM = (
    2**30
)  # of the magnitudes of a row's products with inputs of 8 bits, which are exact sums
_MAX_INPUT = 128
_TOLERANCE = 1e-3  # of a step: what float32 values of a grid miss it by
_NUM_ROWS = 256  # so many at a time stay in the cache

Weights = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float64]
Codes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Grid:
    """Weights [n, k] = lowest + step * code, in groups of 32 columns."""

    codes: Codes  # [n, k], 0 to 15
    steps: Matrix  # [n, k / 32]
    lowest: Matrix  # [n, k / 32]


@dataclass(frozen=True, slots=True)
class IntegerGrid:
    """Weights [n, k] ~ scale * (factor * (code - 7) + middle), an integer of 16 bits."""

    codes: Codes  # [n, k]
    factors: Integers  # [n, k / 32]
    middles: Integers  # [n, k / 32]
    scales: Weights  # [n]

    def integers(self) -> npt.NDArray[np.int32]:
        """Return the weights without their scales, [n, k]."""
        codes = self.codes.reshape(len(self.codes), -1, GROUP).astype(np.int32) - MIDDLE_CODE
        factors, middles = self.factors.astype(np.int32), self.middles.astype(np.int32)
        return (codes * factors[..., None] + middles[..., None]).reshape(self.codes.shape)

    def can_overflow(self) -> bool:
        """Tell whether a weight, or a sum of the kernels, may leave its bits."""
        integers = np.abs(self.integers().astype(np.int64))
        largest = int(integers.sum(axis=1).max(initial=0)) * _MAX_INPUT
        # Rounding and making good may add to it; the planes' sums on the way take a little more.
        return int(integers.max(initial=0)) > _MAX_WEIGHT or largest > 1.5 * _MAX_SUM


def find_grid(weights: Weights) -> Grid | None:
    """
    Return the grid of 16 levels a group that a matrix [n, k] lies on; None where there is none.

    Checkpoints of 4 bits do, once they are decoded: they can be carried over as they are.
    """
    if weights.shape[1] % GROUP:
        return None
    parts = []
    for first in range(0, len(weights), _NUM_ROWS):
        found = _find(weights[first : first + _NUM_ROWS])
        if found is None:
            return None
        parts.append(found)
    codes, steps, lowest = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Grid(codes, steps, lowest)


def _find(weights: Weights) -> tuple[Codes, Matrix, Matrix] | None:
    groups = weights.reshape(-1, GROUP).astype(np.float64)
    lowest = groups.min(axis=1)
    spread = groups.max(axis=1) - lowest
    codes = np.zeros(groups.shape, np.uint8)
    steps = np.zeros(len(groups))
    # NaN is on no grid, and not constant either.
    left = np.flatnonzero(~(spread == 0.0))
    # Whole groups mostly have both ends. A grid that fits is as good as a coarser one that does.
    for num_steps in range(NUM_LEVELS - 1, 0, -1):
        step = spread[left] / num_steps
        levels = (groups[left] - lowest[left, None]) / step[:, None]
        fits = np.abs(levels - np.rint(levels)).max(axis=1, initial=0.0) < _TOLERANCE
        codes[left[fits]] = np.rint(levels[fits])
        steps[left[fits]] = step[fits]
        left = left[~fits]
    if len(left):
        return None
    shape = (len(weights), -1)
    return codes.reshape(shape), steps.reshape(shape), lowest.reshape(shape)


def row_scales(weights: Matrix, headroom: float = 1.0) -> Weights:
    """Return scales [n] under which rows are integers that the kernels can sum exactly."""
    magnitudes = np.abs(weights)
    by_weight = magnitudes.max(axis=1) / _USED_WEIGHT
    by_sum = magnitudes.sum(axis=1) * _MAX_INPUT / _MAX_SUM
    scales = np.maximum(by_weight, by_sum) * headroom
    return np.where(scales == 0.0, 1.0, scales).astype(np.float32)


def to_integers(grid: Grid) -> IntegerGrid:
    """Return the same weights, to some four digits, as what the kernels take."""
    values = grid.lowest[..., None] + grid.steps[..., None] * np.arange(NUM_LEVELS)
    ends = np.take_along_axis(values, grid.codes.reshape(*grid.steps.shape, GROUP), axis=2)
    scales = row_scales(ends.reshape(grid.codes.shape))
    wide = scales[:, None].astype(np.float64)
    factors = np.rint(grid.steps / wide)
    # What rounding the factor did is made good in the middle of the codes that there are.
    mean_code = grid.codes.reshape(ends.shape).mean(axis=2) - MIDDLE_CODE
    middles = np.rint(ends.mean(axis=2) / wide - factors * mean_code)
    result = IntegerGrid(grid.codes, factors.astype(np.int16), middles.astype(np.int16), scales)
    assert not result.can_overflow(), "rounding adds next to nothing"
    return result
