"""
The meter that Prometheus reads. Imported only by a process with an endpoint: it takes 2 MB.

Most of that is the client library's own server, which it loads with everything else.
"""

from collections.abc import Callable, Iterable

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from slipstream.shared.telemetry.meter import Counter, Histogram, Readings
from slipstream.shared.telemetry.metric_names import Metric

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_PLAIN_0_0_4


class PrometheusMeter:
    """Owns the one registry of its process; the library's global one stays unread."""

    def __init__(self) -> None:
        # A moment of creation beside each series doubles their number and tells nobody anything.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call] # the library's
        self.registry = prometheus_client.CollectorRegistry(auto_describe=False)
        prometheus_client.ProcessCollector(registry=self.registry)

    def counter(self, metric: Metric) -> Counter:
        """Return the instrument of a counter."""
        assert metric.kind == "counter", f"{metric.name} is a {metric.kind}"
        made = prometheus_client.Counter(
            metric.name, metric.help, metric.labels, registry=self.registry
        )
        return _Counter(made, has_labels=bool(metric.labels))

    def histogram(self, metric: Metric) -> Histogram:
        """Return the instrument of a histogram."""
        assert metric.kind == "histogram", f"{metric.name} is a {metric.kind}"
        return _Histogram(
            prometheus_client.Histogram(
                metric.name, metric.help, buckets=metric.buckets, registry=self.registry
            )
        )

    def watch(self, metric: Metric, read: Callable[[], Readings]) -> None:
        """Have a gauge or a counter read from who owns the number, when somebody asks."""
        self.registry.register(_Watch(metric, read))

    def render(self) -> bytes:
        """Return everything in the text format. Takes about a millisecond."""
        return prometheus_client.generate_latest(self.registry)


class _Counter:
    def __init__(self, counter: prometheus_client.Counter, *, has_labels: bool) -> None:
        self._counter = counter
        self._has_labels = has_labels

    def add(self, *labels: str, amount: float = 1) -> None:
        counter = self._counter.labels(*labels) if self._has_labels else self._counter
        counter.inc(amount)


class _Histogram:
    def __init__(self, histogram: prometheus_client.Histogram) -> None:
        self._histogram = histogram

    def record(self, value: float) -> None:
        self._histogram.observe(value)


class _Watch(Collector):
    def __init__(self, metric: Metric, read: Callable[[], Readings]) -> None:
        self._metric = metric
        self._read = read

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        metric = self._metric
        is_counter = metric.kind == "counter"
        family = (CounterMetricFamily if is_counter else GaugeMetricFamily)(
            metric.name, metric.help, labels=metric.labels
        )
        for labels, value in self._read().items():
            family.add_metric(labels, value)
        yield family
