"""How likely a fair draw is to be as far from its probabilities as what was counted."""

import math

import numpy as np
import numpy.typing as npt

Chances = npt.NDArray[np.float64]

# Rarer outcomes are counted together, the likeliest of them first: the statistic is chi-square
# only where something is expected.
_MIN_EXPECTED = 40.0


def p_value(counts: npt.NDArray[np.int64], chances: Chances) -> float:
    """Return the probability of a statistic at least as large; 0 where the impossible came."""
    if counts[chances == 0.0].any():
        return 0.0
    order = np.argsort(-chances, kind="stable")
    cells = _cells(chances[order] * counts.sum())
    observed = np.add.reduceat(counts[order], cells)
    expected = np.add.reduceat(chances[order] * counts.sum(), cells)
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return upper_tail(statistic, len(cells) - 1)


def upper_tail(statistic: float, num_degrees: int) -> float:
    """Return the upper tail of chi-square, by Wilson and Hilferty: its cube root is near normal."""
    if num_degrees == 0:
        return 1.0
    spread = 2 / (9 * num_degrees)
    distance = ((statistic / num_degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return math.erfc(distance / math.sqrt(2)) / 2


def _cells(expected: Chances) -> list[int]:
    """Return where cells begin, each large enough; what is left over joins the last one."""
    starts, inside = [0], 0.0
    left = float(expected.sum())
    for idx, one in enumerate(expected):
        if inside >= _MIN_EXPECTED and left >= _MIN_EXPECTED:
            starts.append(idx)
            inside = 0.0
        inside += one
        left -= one
    return starts
