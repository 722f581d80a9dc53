"""
A running stack as its messages tell it: reports, KV events and answers of service discovery.

No clock and no bus here. Whoever is silent for a while is forgotten.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from slipstream.services.cli.top_series import Recent, TallySeries
from slipstream.services.cli.top_snapshot import HostRow, QueueRow, Snapshot, Times, WorkerRow
from slipstream.shared.bus.discovery import Stats
from slipstream.shared.messages.reports import EndedSequence, KvEvent, WorkerReport
from slipstream.shared.telemetry import metric_names
from slipstream.shared.worker.reporter import REPORT_S

WINDOW_S = 10.0  # over which rates and shares are taken
TIMES_S = 60.0  # over which percentiles are
NUM_KEPT = 60  # intervals
SILENT_S = 6 * REPORT_S
GONE_S = 15.0
_NAME = "slipstream-"


@dataclass
class _Seen:
    report: WorkerReport
    at_s: float


@dataclass
class _Service:
    role: str
    series: TallySeries = field(default_factory=lambda: TallySeries(WINDOW_S))


class TopModel:
    """Takes messages in, gives snapshots out."""

    def __init__(self) -> None:
        self._workers: dict[str, _Seen] = {}
        self._services: dict[str, _Service] = {}
        self._ended: dict[tuple[str, int], float] = {}  # when they ended; told several times
        self._changes: deque[tuple[float, str, int, int]] = deque()  # of prefix caches
        self._ttft = Recent(TIMES_S, NUM_KEPT)
        self._tpot = Recent(TIMES_S, NUM_KEPT)
        self._tokens: deque[float | None] = deque(maxlen=NUM_KEPT)
        self._began_s: float | None = None

    def saw_report(self, report: WorkerReport, now_s: float) -> None:
        """Take in what a worker says of itself."""
        self._workers[report.worker_id] = _Seen(report, now_s)
        for ended in report.ended:
            key = (ended.request_id, ended.attempt)
            if key not in self._ended and ended.finish_reason is not None:
                self._ended[key] = now_s
                self._take_times(ended, now_s)

    def saw_stats(self, stats: Stats, now_s: float) -> None:
        """Take in what a service counts; services of others are passed over."""
        if not stats.name.startswith(_NAME):
            return
        told = (each.data for each in stats.endpoints if isinstance(each.data, dict))
        service = self._services.setdefault(stats.id, _Service(stats.name.removeprefix(_NAME)))
        service.series.add(now_s, next(told, {}))

    def saw_kv_event(self, event: KvEvent, now_s: float) -> None:
        """Take in what entered and left a host's prefix cache."""
        if self._began_s is None:
            self._began_s = now_s
        self._changes.append((now_s, event.host_id, len(event.stored), len(event.removed)))

    def tick(self, now_s: float) -> None:
        """End an interval: the histories get their next value, and what is old is forgotten."""
        self._tokens.append(self._sum_of_rates(metric_names.OUTPUT_TOKENS.name))
        for times in (self._ttft, self._tpot):
            times.tick(now_s)
        while self._changes and self._changes[0][0] < now_s - WINDOW_S:
            self._changes.popleft()
        self._ended = {key: at_s for key, at_s in self._ended.items() if at_s > now_s - TIMES_S}
        gone_s = now_s - GONE_S
        self._workers = {key: seen for key, seen in self._workers.items() if seen.at_s > gone_s}
        self._services = {
            key: each for key, each in self._services.items() if each.series.seen_s > gone_s
        }

    def snapshot(self, now_s: float) -> Snapshot:
        """Return what is known now."""
        draft_tokens = metric_names.DRAFT_TOKENS.name
        return Snapshot(
            services=dict(sorted(Counter(each.role for each in self._services.values()).items())),
            workers=self._worker_rows(now_s),
            queue=self._queue(),
            hosts=self._host_rows(now_s),
            tokens_per_s=self._sum_of_rates(metric_names.OUTPUT_TOKENS.name),
            tokens_history=list(self._tokens),
            ttft_ms=_times_of(self._ttft),
            tpot_ms=_times_of(self._tpot),
            draft_acceptance=self._share((draft_tokens, "accepted"), (draft_tokens, "tested")),
            cache_hits=self._share(
                (metric_names.CACHED_TOKENS.name,), (metric_names.PROMPT_TOKENS.name,)
            ),
        )

    def _take_times(self, ended: EndedSequence, now_s: float) -> None:
        self._ttft.add(now_s, ended.ttft_ms)
        num_later = ended.usage.num_output_tokens - 1 if ended.usage is not None else 0
        if num_later > 0:
            self._tpot.add(now_s, (ended.total_ms - ended.ttft_ms) / num_later)

    def _worker_rows(self, now_s: float) -> list[WorkerRow]:
        rows = [
            self._worker_row(seen, now_s)
            for seen in self._workers.values()
            if seen.report.role != "kv"
        ]
        return sorted(rows, key=lambda row: (row.role, row.worker_id))

    def _worker_row(self, seen: _Seen, now_s: float) -> WorkerRow:
        report = seen.report
        service = self._services.get(report.worker_id)
        series = service.series if service is not None else TallySeries(WINDOW_S)
        by_state = (metric_names.REQUESTS.name, report.role)
        state = "draining" if report.is_draining else "ready"
        return WorkerRow(
            worker_id=report.worker_id,
            role=report.role,
            host_id=report.host_id,
            state="silent" if now_s - seen.at_s > SILENT_S else state,
            num_seats=report.num_seats,
            num_held=report.num_seats - report.num_free_seats,
            num_waiting=int(series.last(*by_state, "waiting")),
            num_prefilling=int(series.last(*by_state, "prefilling")),
            num_running=int(series.last(*by_state, "running")),
            tokens_per_s=series.rate(metric_names.OUTPUT_TOKENS.name),
        )

    def _queue(self) -> QueueRow:
        schedulers = [each.series for each in self._all("scheduler")]
        requests = (metric_names.REQUESTS.name, "scheduler")
        age, submitted = metric_names.QUEUE_AGE.name, metric_names.SUBMISSIONS.name
        refused = metric_names.REFUSED.name
        return QueueRow(
            num_waiting=_sum(schedulers, *requests, "waiting"),
            num_prefilling=_sum(schedulers, *requests, "prefilling"),
            num_running=_sum(schedulers, *requests, "running"),
            oldest_s=max((each.last(age) for each in schedulers), default=0.0),
            # Each tells of the one stream.
            num_submitted=int(
                max((each.last(submitted, "waiting") for each in schedulers), default=0)
            ),
            num_refused=sum(int(each.total(refused)) for each in schedulers),
        )

    def _host_rows(self, now_s: float) -> list[HostRow]:
        rows = []
        for worker_id, service in self._services.items():
            seen = self._workers.get(worker_id)
            if service.role != "kv" or seen is None or seen.report.host_id is None:
                continue
            host_id, series = seen.report.host_id, service.series
            stored, removed = self._changes_per_s(host_id, now_s)
            rows.append(
                HostRow(
                    host_id=host_id,
                    num_blocks=int(series.last(metric_names.KV_POOL_BLOCKS.name)),
                    blocks=series.numbers(metric_names.KV_BLOCKS.name),
                    stored_per_s=stored,
                    removed_per_s=removed,
                )
            )
        return sorted(rows, key=lambda row: row.host_id)

    def _changes_per_s(self, host_id: str, now_s: float) -> tuple[float, float]:
        mine = [(stored, removed) for _, host, stored, removed in self._changes if host == host_id]
        if not mine or self._began_s is None:
            return 0.0, 0.0
        elapsed_s = min(WINDOW_S, max(1.0, now_s - self._began_s))
        return sum(each[0] for each in mine) / elapsed_s, sum(each[1] for each in mine) / elapsed_s

    def _all(self, role: str) -> Iterable[_Service]:
        return (each for each in self._services.values() if each.role == role)

    def _sum_of_rates(self, *path: str) -> float:
        return sum(each.series.rate(*path) for each in self._services.values())

    def _share(self, part: tuple[str, ...], whole: tuple[str, ...]) -> float | None:
        services = self._services.values()
        num_whole = sum(each.series.grown(*whole) for each in services)
        if not num_whole:
            return None
        return sum(each.series.grown(*part) for each in services) / num_whole


def _sum(series: Iterable[TallySeries], *path: str) -> int:
    return sum(int(each.last(*path)) for each in series)


def _times_of(recent: Recent) -> Times:
    p50, p95 = recent.percentiles() or (None, None)
    return Times(p50=p50, p95=p95, history=list(recent.history))
