"""
Improve weights of 4 bits that are rounded: each in turn takes the best code, given all others.

Behdin et al., "QuantEase: Optimization-based Quantization for Language Models", 2023, algorithm 1.
Between groups of columns, the step and the lowest value of the one that is done are fitted to its
codes by least squares: both lower the same error, that of the outputs, so neither can do harm.
"""

import numpy as np
import numpy.typing as npt

from slipstream.kernels.cpu.matrix import GROUP
from slipstream.shared.model.int4_grid import MIDDLE_CODE, NUM_LEVELS

_NUM_SWEEPS = 2  # a third one gains a tenth of what the first did
_SINGULAR = 1e-6  # a group with one code leaves step and middle undetermined
_LIMIT = 32000.0  # of an integer

Columns = npt.NDArray[np.float32]  # [k, rows]: an input column lies together
Vector = npt.NDArray[np.float32]  # [rows]


class Descent:
    """Rows of integers on a grid, and the matrix they stand for."""

    def __init__(
        self, targets: Columns, codes: Columns, factors: Columns, middles: Columns, moments: Columns
    ) -> None:
        """
        Take targets and codes [k, rows], factors and middles [k / 32, rows]; the last three change.

        `moments` [k, k] are the damped second moments of the inputs.
        """
        self._codes, self._factors, self._middles = codes, factors, middles
        self._moments = moments
        values = (codes.reshape(-1, GROUP, codes.shape[1]) - MIDDLE_CODE) * factors[:, None]
        self._off = (values + middles[:, None]).reshape(codes.shape) - targets
        self._gradient = moments @ self._off

    def run(self) -> None:
        """Sweep over all groups."""
        for _ in range(_NUM_SWEEPS):
            for group in range(len(self._factors)):
                self._choose_codes(group)
                self._fit_grid(group)

    def _choose_codes(self, group: int) -> None:
        columns = slice(group * GROUP, (group + 1) * GROUP)
        within = self._moments[columns, columns]
        gradient, changes = self._gradient[columns].copy(), np.empty_like(self._off[columns])
        factor = self._factors[group]
        for i in range(GROUP):
            codes = self._codes[columns][i]
            # A step back along the gradient, in codes.
            wanted = np.rint(codes - gradient[i] / (within[i, i] * factor))
            chosen = np.clip(wanted, 0, NUM_LEVELS - 1)
            changes[i] = (chosen - codes) * factor
            codes[:] = chosen
            gradient += within[:, i, None] * changes[i]
        self._change(columns, changes)

    def _fit_grid(self, group: int) -> None:
        columns = slice(group * GROUP, (group + 1) * GROUP)
        codes, within = self._codes[columns] - MIDDLE_CODE, self._moments[columns, columns]
        gradient = self._gradient[columns]
        weighted = within @ codes
        # The error is a parabola in factor and middle: its slopes and curvatures.
        by_factor, by_middle = (gradient * codes).sum(axis=0), gradient.sum(axis=0)
        both, mixed, middle = (weighted * codes).sum(axis=0), weighted.sum(axis=0), within.sum()
        determinant = both * middle - mixed**2
        is_determined = determinant > _SINGULAR * both * middle
        divisor = np.where(is_determined, determinant, np.float32(1.0))
        factors = self._factors[group] - (by_factor * middle - by_middle * mixed) / divisor
        middles = self._middles[group] - (by_middle * both - by_factor * mixed) / divisor
        factors, middles = np.maximum(np.rint(factors), 1.0), np.rint(middles)
        changes = (factors - self._factors[group]) * codes + (middles - self._middles[group])
        # They are whole numbers, so the best ones may lie on the other side.
        gain = (changes * (2.0 * gradient + within @ changes)).sum(axis=0)
        is_whole = np.abs(middles) + 8.0 * factors < _LIMIT
        is_better = is_determined & is_whole & (gain < 0.0)
        self._factors[group] = np.where(is_better, factors, self._factors[group])
        self._middles[group] = np.where(is_better, middles, self._middles[group])
        self._change(columns, changes * is_better)

    def _change(self, columns: slice, changes: Columns) -> None:
        self._off[columns] += changes
        self._gradient += self._moments[:, columns] @ changes
