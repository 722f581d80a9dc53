"""Whether something grows, by figures that noise moves: robust against steps and single peaks."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

_MAX_NUM_POINTS = 120  # pairs of which are compared


@dataclass(frozen=True)
class Trend:
    """How a series went on after its warm-up."""

    first: float  # median of its first third
    last: float  # of its last third
    per_hour: float  # Theil and Sen: the median of the slopes between all pairs of points

    @property
    def grown(self) -> float:
        """By how much the last third lies above the first."""
        return self.last - self.first

    def grows(self, max_grown: float, max_per_hour: float) -> bool:
        """
        Tell whether both figures are above their bounds.

        A cache that fills late moves the medians and not the slope; noise in a short run moves the
        slope and not the medians. A leak moves both.
        """
        return self.grown > max_grown and self.per_hour > max_per_hour


def trend_of(times_s: Sequence[float], values: Sequence[float]) -> Trend:
    """Return the trend of values over time; there must be three at least."""
    assert len(times_s) == len(values) >= 3, "a trend needs three points"
    third = len(values) // 3
    return Trend(median(values[:third]), median(values[-third:]), _slope(times_s, values) * 3600)


def _slope(times_s: Sequence[float], values: Sequence[float]) -> float:
    step = -(-len(values) // _MAX_NUM_POINTS)
    points = list(zip(times_s[::step], values[::step], strict=True))
    slopes = [
        (value - earlier_value) / (time_s - earlier_s)
        for (earlier_s, earlier_value), (time_s, value) in combinations(points, 2)
        if time_s > earlier_s
    ]
    return median(slopes)
