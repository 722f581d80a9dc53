"""
The sampler's passes over a whole row of logits, in numpy or natively.

Both give the same, bit for bit, or tokens would depend on a compiler having been there. Where a
native pass rounds in another way, as in sums, it knows how far off it can be: nearly always that
settles what is asked, and where it doesn't, numpy does.
"""

import math
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from slipstream.kernels.cpu.loader import NativeUnavailableError, load
from slipstream.kernels.cpu.sampling import SamplingKernels

Logits = npt.NDArray[np.float32]
Scores = npt.NDArray[np.float64]
TokenIds = npt.NDArray[np.int64]

# The logarithm of a sum is given in multiples of it, which leaves the order of the sum no say.
LOG_STEP = 2.0**-40

# Of a sum of weights, relative: 2^-45 covers the roundings of two exponentials and two sums, here
# and there (1.6e-14 at most up to a million logits). Dividing by the temperature adds its own.
_SUM_ERROR = 2.0**-45
_SCORE_ERROR = 2.0**-51
# Larger scores and stranger temperatures could bring roundings near the margins.
_MAX_ORDINARY = 2.0**20

# numpy looks at a row as fast as memory gives it, and calling it costs 5 us less. But it gives the
# GIL away and takes it back for each row.
_SEVERAL_ROWS = 4

# How many of the largest are looked at first for a nucleus, and by what they grow.
_FIRST_NUCLEUS = 256
_NUCLEUS_GROWTH = 8


class Peak(NamedTuple):
    """The largest logit of a row, on a tie the one of the lowest id; the first NaN if any."""

    token_id: int
    logit: float


class Floor(NamedTuple):
    """The last token that may be drawn, by descending logit and ascending id."""

    logit: float
    token_id: int


class RowPasses(Protocol):
    """
    What takes a look at every token of the vocabulary.

    Rows are [vocab], finite or -inf but for `peaks`; scores are logits / temperature and weights
    e^(score - largest score).
    """

    def peaks(self, rows: Logits) -> list[Peak]:
        """Return the peak of each row [rows, vocab]."""
        ...

    def largest(self, row: Logits, num_largest: int) -> TokenIds:
        """Return the ids of the largest, largest first, on a tie the lowest id first."""
        ...

    def nucleus(self, row: Logits, peak: Peak, temperature: float, top_p: float) -> Floor:
        """Return the last of the fewest largest whose weights reach `top_p` of all weights."""
        ...

    def log_total(self, row: Logits, peak: Peak) -> float:
        """Return the logarithm of the sum of e^logit, to the nearest LOG_STEP."""
        ...

    def contenders(
        self,
        row: Logits,
        peak: Peak,
        temperature: float,
        seed: int,
        output_position: int,
        floor: Floor,
    ) -> TokenIds:
        """
        Return ids, ascending, that include each one whose score plus noise may be the largest.

        Only those down to the floor, on a tie the highest id, are in the race.
        """
        ...


class NumpyPasses:
    """The plain ones, which say what is right."""

    def peaks(self, rows: Logits) -> list[Peak]:
        """Return the peak of each row; see `RowPasses`."""
        return [Peak(token_id := int(row.argmax()), float(row[token_id])) for row in rows]

    def largest(self, row: Logits, num_largest: int) -> TokenIds:
        """Return the ids of the largest; see `RowPasses`."""
        if num_largest <= 0:
            return np.empty(0, np.int64)
        if num_largest < len(row):
            threshold = np.partition(row, -num_largest)[-num_largest]
            token_ids = np.flatnonzero(row >= threshold)
        else:
            token_ids = np.arange(len(row))
        # Stable over ascending ids, which settles ties; they may be more than asked for.
        return token_ids[np.argsort(-row[token_ids], kind="stable")][:num_largest]

    def nucleus(self, row: Logits, peak: Peak, temperature: float, top_p: float) -> Floor:
        """Rank and add up until it is reached; see `RowPasses`."""
        weights = _weights(row, peak, temperature)
        wanted = top_p * weights.sum()
        num_ranked = _FIRST_NUCLEUS
        while True:
            ranked = self.largest(row, num_ranked)
            reached = np.cumsum(weights[ranked])
            if reached[-1] >= wanted or num_ranked >= len(row):
                break
            num_ranked *= _NUCLEUS_GROWTH
        last = int(ranked[min(np.searchsorted(reached, wanted), len(ranked) - 1)])
        return Floor(float(row[last]), last)

    def log_total(self, row: Logits, peak: Peak) -> float:
        """Add up; see `RowPasses`."""
        return _log_total(peak, float(_weights(row, peak, 1.0).sum()))

    def contenders(
        self,
        row: Logits,
        peak: Peak,  # noqa: ARG002 - without a look at the noise any may be it
        temperature: float,  # noqa: ARG002 - of the noise, which is not looked at
        seed: int,  # noqa: ARG002 - of the noise, which is not looked at
        output_position: int,  # noqa: ARG002 - of the noise, which is not looked at
        floor: Floor,
    ) -> TokenIds:
        """Return all down to the floor; see `RowPasses`."""
        return all_down_to(row, floor)


class NativePasses:
    """The fast ones."""

    def __init__(self, kernels: SamplingKernels) -> None:
        self._kernels = kernels
        self._plain = NumpyPasses()

    def peaks(self, rows: Logits) -> list[Peak]:
        """Return the peak of each row, of several in one call; see `RowPasses`."""
        if len(rows) < _SEVERAL_ROWS:
            return self._plain.peaks(rows)
        return [Peak(*each) for each in self._kernels.find_peaks(rows)]

    def largest(self, row: Logits, num_largest: int) -> TokenIds:
        """Return the ids of the largest; see `RowPasses`."""
        num_largest = min(num_largest, len(row))
        if num_largest <= 0:
            return np.empty(0, np.int64)
        return self._kernels.find_largest(row, num_largest)

    def nucleus(self, row: Logits, peak: Peak, temperature: float, top_p: float) -> Floor:
        """Return where it ends unless that hangs on roundings; see `RowPasses`."""
        last = None
        if _is_ordinary(peak, temperature):
            error = _sum_error(peak, temperature)
            last = self._kernels.find_nucleus(row, peak.logit, temperature, top_p, error)
        if last is None:
            return self._plain.nucleus(row, peak, temperature, top_p)
        return Floor(float(row[last]), last)

    def log_total(self, row: Logits, peak: Peak) -> float:
        """Return what both bounds of the sum are rounded to; see `RowPasses`."""
        if _is_ordinary(peak, 1.0):
            total = self._kernels.total_weight(row, peak.logit, 1.0)
            error = total * _sum_error(peak, 1.0)
            log_total = _log_total(peak, total - error)
            if log_total == _log_total(peak, total + error):
                return log_total
        return self._plain.log_total(row, peak)

    def contenders(
        self,
        row: Logits,
        peak: Peak,
        temperature: float,
        seed: int,
        output_position: int,
        floor: Floor,
    ) -> TokenIds:
        """Return the few that are within a margin of the best; see `RowPasses`."""
        found = None
        if _is_ordinary(peak, temperature):
            found = self._kernels.find_contenders(
                row, peak.token_id, temperature, seed, output_position, floor
            )
        if found is None:
            return self._plain.contenders(row, peak, temperature, seed, output_position, floor)
        return found


@cache
def row_passes() -> RowPasses:
    """Return the native passes, or without them the plain ones: tokens are the same."""
    try:
        return NativePasses(SamplingKernels(load()))
    except NativeUnavailableError:
        return NumpyPasses()


def all_down_to(row: Logits, floor: Floor) -> TokenIds:
    """Return the ids of all that may be drawn, ascending."""
    is_left = row > floor.logit
    is_left[: floor.token_id + 1] |= row[: floor.token_id + 1] == floor.logit
    return np.flatnonzero(is_left)


def _weights(row: Logits, peak: Peak, temperature: float) -> Scores:
    weights = row.astype(np.float64)
    weights /= temperature
    weights -= peak.logit / temperature
    return np.exp(weights, out=weights)


def _log_total(peak: Peak, total: float) -> float:
    return round((peak.logit + math.log(total)) / LOG_STEP) * LOG_STEP


def _sum_error(peak: Peak, temperature: float) -> float:
    return _SUM_ERROR + _SCORE_ERROR * abs(peak.logit / temperature)


def _is_ordinary(peak: Peak, temperature: float) -> bool:
    largest = max(abs(peak.logit), abs(peak.logit / temperature), temperature, 1 / temperature)
    return largest <= _MAX_ORDINARY
