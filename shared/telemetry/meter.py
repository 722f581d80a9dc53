"""What a process counts and shows; services count, and need not know for whom."""

from collections.abc import Callable, Mapping
from typing import Protocol

from slipstream.shared.telemetry.metric_names import Metric

# Values of a metric by the values of its labels, in the order that it names them.
Readings = Mapping[tuple[str, ...], float]


class Counter(Protocol):
    """Only grows."""

    def add(self, *labels: str, amount: float = 1) -> None:
        """Count; an amount of 0 shows a label before it is needed."""


class Histogram(Protocol):
    """How often a value fell below each bound."""

    def record(self, value: float) -> None:
        """Count a value."""


class Meter(Protocol):
    """Makes a process's instruments, each once. Use them on the event loop."""

    def counter(self, metric: Metric, /) -> Counter:
        """Return the instrument of a counter."""

    def histogram(self, metric: Metric, /) -> Histogram:
        """Return the instrument of a histogram."""

    def watch(self, metric: Metric, read: Callable[[], Readings], /) -> None:
        """Have a gauge or a counter read from who owns the number, when somebody asks."""
