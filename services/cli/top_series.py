"""Numbers over time, for `slipstream top`. No clock here: every call is told the time."""

import statistics
from collections import deque
from collections.abc import Sequence
from typing import Any

from slipstream.shared.telemetry.tally_meter import number_at

RATE_S = 2.0  # over which a rate is taken: shorter ones jump, longer ones lag
_P95 = 0.95


class TallySeries:
    """What one service counted, over the last seconds."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, dict[str, Any]]] = deque()  # Any: see tally_meter.Tallies

    def add(self, now_s: float, tallies: dict[str, Any]) -> None:  # Any: as above
        """Take a sample, and forget those that are too old but for one before the window."""
        self._samples.append((now_s, tallies))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - self._window_s:  # noqa: PLR2004 # a difference has two ends
            self._samples.popleft()

    @property
    def seen_s(self) -> float:
        """When the last sample came."""
        return self._samples[-1][0] if self._samples else float("-inf")

    def last(self, *path: str) -> float:
        """Return a number as it was last."""
        return number_at(self._samples[-1][1], *path) if self._samples else 0

    def numbers(self, name: str) -> dict[str, int]:
        """Return the last numbers of a metric with one label, by its values."""
        found = self._samples[-1][1].get(name) if self._samples else None
        return {key: int(value) for key, value in found.items()} if isinstance(found, dict) else {}

    def total(self, name: str) -> float:
        """Return the last sum of a metric over the values of its one label."""
        return sum(self.numbers(name).values())

    def grown(self, *path: str) -> float:
        """Return by how much a counter has grown in the window."""
        if not self._samples:
            return 0
        return max(0.0, self.last(*path) - number_at(self._samples[0][1], *path))

    def rate(self, *path: str) -> float:
        """Return how much a counter grows in a second, over the last few."""
        if not self._samples:
            return 0.0
        last_s, last = self._samples[-1]
        old_enough = (each for each in reversed(self._samples) if each[0] <= last_s - RATE_S)
        first_s, first = next(old_enough, self._samples[0])
        grown = number_at(last, *path) - number_at(first, *path)
        return max(0.0, grown) / (last_s - first_s) if last_s > first_s else 0.0


class Recent:
    """Values of the last seconds, and the median of each interval before."""

    def __init__(self, window_s: float, num_kept: int) -> None:
        self._window_s = window_s
        self._values: deque[tuple[float, float]] = deque()
        self._fresh: list[float] = []
        self.history: deque[float | None] = deque(maxlen=num_kept)

    def add(self, now_s: float, value: float) -> None:
        """Take a value."""
        self._values.append((now_s, value))
        self._fresh.append(value)

    def tick(self, now_s: float) -> None:
        """End an interval."""
        self.history.append(statistics.median(self._fresh) if self._fresh else None)
        self._fresh = []
        while self._values and self._values[0][0] < now_s - self._window_s:
            self._values.popleft()

    def percentiles(self) -> tuple[float, float] | None:
        """Return p50 and p95, None where there are no values."""
        values = sorted(value for _, value in self._values)
        return (statistics.median(values), _at(values, _P95)) if values else None


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
