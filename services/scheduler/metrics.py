"""What the scheduler counts, and what it shows of its desk."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from slipstream.services.scheduler.records import RequestRecord
from slipstream.shared.ids import HostId
from slipstream.shared.messages.common import Phase
from slipstream.shared.scheduling.placed import Placement
from slipstream.shared.telemetry import metric_names
from slipstream.shared.telemetry.meter import Meter, Readings

_STATES: dict[Phase, str] = {"waiting": "waiting", "prefilling": "prefilling"}  # else running


class SchedulerMetrics:
    """The endings that it sends itself, how long requests waited, and those that it holds."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._queue_time = meter.histogram(metric_names.QUEUE_TIME)
        self._placements = meter.counter(metric_names.PLACEMENTS)
        self._refused = meter.counter(metric_names.REFUSED)
        self._failed = meter.counter(metric_names.FAILED)
        self._late = meter.counter(metric_names.LATE_COMPLETIONS)
        self._prefix_resyncs = meter.counter(metric_names.PREFIX_RESYNCS)

    def began(self, queue_s: float) -> None:
        """Count a request's first placement."""
        self._queue_time.record(queue_s)

    def placed(self, placement: Placement) -> None:
        """Count an attempt, by where its prompt is computed and why."""
        self._placements.add(placement.route, placement.reason)

    def refused(self, reason: str) -> None:
        """Count a refusal at the door."""
        self._refused.add(reason)

    def failed(self, code: str) -> None:
        """Count an admitted request that the scheduler ended."""
        self._failed.add(code)

    def was_late(self) -> None:
        """Count a report of an ending that no longer matters."""
        self._late.add()

    def asked_for_prefixes(self) -> None:
        """Count a question to a host for all the blocks it knows."""
        self._prefix_resyncs.add()

    def watch_prefixes(self, num_blocks: Callable[[], Mapping[HostId, int]]) -> None:
        """Show how many blocks are known of each host."""
        self._meter.watch(
            metric_names.KNOWN_BLOCKS,
            lambda: {(host_id,): number for host_id, number in num_blocks().items()},
        )

    def watch(self, records: Callable[[], Iterable[RequestRecord]]) -> None:
        """Show the requests that are held, by state, and how long the oldest has waited."""
        self._meter.watch(metric_names.REQUESTS, lambda: _requests(records()))
        self._meter.watch(metric_names.QUEUE_AGE, lambda: _queue_age(records()))


def _requests(records: Iterable[RequestRecord]) -> Readings:
    counted = Counter(_STATES.get(record.phase, "running") for record in records)
    states = ("waiting", "prefilling", "running")
    return {("scheduler", state): counted[state] for state in states}


def _queue_age(records: Iterable[RequestRecord]) -> Readings:
    waiting = (record.elapsed_ms for record in records if record.phase == "waiting")
    return {(): max(waiting, default=0.0) / 1000}
