"""What workers count of their steps: how large, and how much of the time the engine computes."""

import time
from collections.abc import Callable

from slipstream.shared.errors import NonFiniteLogitsError
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.meter import Meter


class WorkClock:
    """How long there was work, up to now."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._done_s = 0.0
        self._since: float | None = None

    def start(self) -> None:
        """There is work; more of it changes nothing."""
        if self._since is None:
            self._since = self._now()

    def stop(self) -> None:
        """There is none left."""
        self._done_s = self.seconds
        self._since = None

    @property
    def seconds(self) -> float:
        """The sum."""
        return self._done_s + (0.0 if self._since is None else self._now() - self._since)


class StepMetrics:
    """The steps of one engine. `work` runs while there is a sequence to compute."""

    def __init__(self, meter: Meter) -> None:
        self.work = WorkClock()
        self._meter = meter
        self._batch_size = meter.histogram(names.METRIC_BATCH_SIZE)
        self._nonfinite_rows = meter.counter(names.METRIC_NONFINITE_ROWS)

    def stepped(self, num_sequences: int) -> None:
        """Count a step."""
        self._batch_size.record(num_sequences)

    def row_failed(self, error: Exception | None) -> None:
        """Count a row whose logits were no numbers; None and other errors count elsewhere."""
        if isinstance(error, NonFiniteLogitsError):
            self._nonfinite_rows.add()

    def watch(self, busy_s: Callable[[], float]) -> None:
        """Show how long the engine computed, and how long it had something to compute."""
        self._meter.watch(names.METRIC_ENGINE_BUSY, lambda: {(): busy_s()})
        self._meter.watch(names.METRIC_WORK_TIME, lambda: {(): self.work.seconds})
