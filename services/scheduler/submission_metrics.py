"""What the scheduler counts of submissions, and what it shows of their queue."""

from collections.abc import Callable

from slipstream.shared.bus.durable import QueueCounts
from slipstream.shared.telemetry import metric_names
from slipstream.shared.telemetry.meter import Meter, Readings


class SubmissionMetrics:
    """Redeliveries, dead letters, and how many submissions there are."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._redelivered = meter.counter(metric_names.REDELIVERED)
        self._dead = meter.counter(metric_names.DEAD)

    def redelivered(self) -> None:
        """Count a submission that had been taken before."""
        self._redelivered.add()

    def dead(self, code: str) -> None:
        """Count a submission that ended as a dead letter."""
        self._dead.add(code)

    def watch(self, counts: Callable[[], QueueCounts], num_in_hand: Callable[[], int]) -> None:
        """Show the stream as it was looked at last, and what is held here."""

        def read() -> Readings:
            waiting, taken = counts()
            return {("waiting",): waiting, ("taken",): taken, ("in_hand",): num_in_hand()}

        self._meter.watch(metric_names.SUBMISSIONS, read)
