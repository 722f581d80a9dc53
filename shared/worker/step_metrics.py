"""What workers count of their steps: how large, and how much of the time the engine computes."""

import time
from collections.abc import Callable, Mapping

from slipstream.shared.errors import NonFiniteLogitsError
from slipstream.shared.telemetry import metric_names
from slipstream.shared.telemetry.meter import Meter, Readings
from slipstream.shared.worker.activities import Activity, ActivityClock
from slipstream.shared.worker.engine import EngineThread


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
        self.activities = ActivityClock()
        self._meter = meter
        self._batch_size = meter.histogram(metric_names.BATCH_SIZE)
        self._nonfinite_rows = meter.counter(metric_names.NONFINITE_ROWS)

    def stepped(self, num_sequences: int) -> None:
        """Count a step."""
        self._batch_size.record(num_sequences)

    def row_failed(self, error: Exception | None) -> None:
        """Count a row whose logits were no numbers; None and other errors count elsewhere."""
        if isinstance(error, NonFiniteLogitsError):
            self._nonfinite_rows.add()

    def watch(self, engine: EngineThread) -> None:
        """Show what the worker's time went into, and how long the engine had something to do."""
        activities = self.activities
        self._meter.watch(metric_names.ENGINE_BUSY, lambda: {(): engine.busy_s})
        self._meter.watch(metric_names.WORK_TIME, lambda: {(): self.work.seconds})
        self._meter.watch(metric_names.ACTIVITY, lambda: _by_label(activities.seconds()))
        self._meter.watch(
            metric_names.REQUEST_ACTIVITY, lambda: _by_label(activities.request_seconds())
        )
        self._meter.watch(metric_names.ENGINE_BYTES, lambda: _bytes_of(engine))


def _by_label(seconds: Mapping[Activity, float]) -> Readings:
    return {(activity,): value for activity, value in seconds.items()}


def _bytes_of(engine: EngineThread) -> Readings:
    counters = engine.runner.counters
    if counters is None:
        return {}
    return {("weights",): counters.weight_bytes, ("kv",): counters.kv_bytes}
