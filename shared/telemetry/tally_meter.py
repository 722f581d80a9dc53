"""The meter that every process has: plain numbers, told by service discovery (`STATS`)."""

from collections.abc import Callable, Mapping
from typing import Any

from slipstream.shared.telemetry.meter import Counter, Histogram, Meter, Readings
from slipstream.shared.telemetry.metric_names import Metric

# By name; values of labels, in the order that the metric names them, are keys within.
Tallies = dict[str, Any]  # Any: a number, or a dictionary as deep as there are labels


class TallyMeter:
    """Keeps counters and sums, no distributions: it takes no library and hardly any memory."""

    def __init__(self) -> None:
        self._reads: dict[str, tuple[Metric, Callable[[], Readings]]] = {}

    def counter(self, metric: Metric, /) -> Counter:
        """Return the instrument of a counter."""
        tally = _Tally()
        self.watch(metric, lambda: tally.readings)
        return tally

    def histogram(self, metric: Metric, /) -> Histogram:
        """Return the instrument of a histogram: the number of its values and their sum."""
        sums = _Sums()
        self.watch(metric._replace(labels=("of",)), lambda: sums.readings)
        return sums

    def watch(self, metric: Metric, read: Callable[[], Readings], /) -> None:
        """Have a gauge or a counter read from who owns the number, when somebody asks."""
        self._reads[metric.name] = metric, read

    def read(self) -> Tallies:
        """Return every number as it is now."""
        return {name: _nested(metric, read()) for name, (metric, read) in self._reads.items()}


class _Tally:
    def __init__(self) -> None:
        self.readings: dict[tuple[str, ...], float] = {}

    def add(self, *labels: str, amount: float = 1) -> None:
        self.readings[labels] = self.readings.get(labels, 0) + amount


class _Sums:
    def __init__(self) -> None:
        self.readings: dict[tuple[str, ...], float] = {("count",): 0, ("sum",): 0.0}

    def record(self, value: float) -> None:
        self.readings["count",] += 1
        self.readings["sum",] += value


def _nested(metric: Metric, readings: Readings) -> Any:  # Any: see Tallies
    if not metric.labels:
        return readings.get((), 0)
    found: Tallies = {}
    for labels, value in readings.items():
        inner = found
        for label in labels[:-1]:
            inner = inner.setdefault(label, {})
        inner[labels[-1]] = value
    return found


class BothMeters:
    """Tells two meters everything."""

    def __init__(self, first: Meter, second: Meter) -> None:
        self._meters = (first, second)

    def counter(self, metric: Metric, /) -> Counter:
        """Return an instrument of both."""
        return _BothCounters([each.counter(metric) for each in self._meters])

    def histogram(self, metric: Metric, /) -> Histogram:
        """Return an instrument of both."""
        return _BothHistograms([each.histogram(metric) for each in self._meters])

    def watch(self, metric: Metric, read: Callable[[], Readings], /) -> None:
        """Have both read a gauge or a counter."""
        for each in self._meters:
            each.watch(metric, read)


class _BothCounters:
    def __init__(self, counters: list[Counter]) -> None:
        self._counters = counters

    def add(self, *labels: str, amount: float = 1) -> None:
        for each in self._counters:
            each.add(*labels, amount=amount)


class _BothHistograms:
    def __init__(self, histograms: list[Histogram]) -> None:
        self._histograms = histograms

    def record(self, value: float) -> None:
        for each in self._histograms:
            each.record(value)


def number_at(tallies: Mapping[str, Any], *path: str) -> float:  # Any: see Tallies
    """Return one number of what `read` returned, 0 where there is none."""
    found: Any = tallies  # Any: as above
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, int | float) else 0
