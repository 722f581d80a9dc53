"""One set of instruments for all terms of a scheduler."""

from collections.abc import Callable

from slipstream.shared.telemetry.meter import Counter, Histogram, Meter, Readings
from slipstream.shared.telemetry.metric_names import Metric


class TermMeter:
    """Gives the same instrument again, and has a gauge read from whoever named it last."""

    def __init__(self, inner: Meter) -> None:
        self._inner = inner
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._reads: dict[str, Callable[[], Readings]] = {}

    def counter(self, metric: Metric, /) -> Counter:
        """Return the instrument of a counter."""
        if metric.name not in self._counters:
            self._counters[metric.name] = self._inner.counter(metric)
        return self._counters[metric.name]

    def histogram(self, metric: Metric, /) -> Histogram:
        """Return the instrument of a histogram."""
        if metric.name not in self._histograms:
            self._histograms[metric.name] = self._inner.histogram(metric)
        return self._histograms[metric.name]

    def watch(self, metric: Metric, read: Callable[[], Readings], /) -> None:
        """Have a number read from who owns it in this term."""
        is_new = metric.name not in self._reads
        self._reads[metric.name] = read
        if is_new:
            self._inner.watch(metric, lambda: self._reads[metric.name]())  # noqa: PLW0108 - by then another
