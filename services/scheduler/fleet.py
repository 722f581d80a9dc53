"""The workers as their reports show them. Pure: times come in as values."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from slipstream.services.scheduler.placement import WorkerView
from slipstream.shared.ids import HostId, WorkerId
from slipstream.shared.messages.common import Role
from slipstream.shared.messages.reports import WorkerReport

SILENT_AFTER_S = 1.2


@dataclass(slots=True)
class _Worker:
    report: WorkerReport
    seen_at: float
    is_suspect: bool = False  # nobody listened there; its next report clears it


class Fleet:
    """Owns what is known of each worker, and how many requests this scheduler placed on it."""

    def __init__(self) -> None:
        self._workers: dict[WorkerId, _Worker] = {}
        self._assigned: Counter[WorkerId] = Counter()

    def saw(self, report: WorkerReport, now: float) -> bool:
        """Take a report; False for one that is older than what is known."""
        known = self._workers.get(report.worker_id)
        if known is not None and (report.epoch, report.number) <= (
            known.report.epoch,
            known.report.number,
        ):
            return False
        self._workers[report.worker_id] = _Worker(report, now)
        return True

    def suspect(self, worker_id: WorkerId) -> None:
        """Place nothing on a worker until it reports; it counts as silent, so it is probed soon."""
        known = self._workers.get(worker_id)
        if known is not None:
            known.is_suspect = True

    def remove(self, worker_id: WorkerId) -> None:
        """Forget a worker that is gone."""
        self._workers.pop(worker_id, None)

    def has(self, worker_id: WorkerId) -> bool:
        """Tell whether a worker is known."""
        return worker_id in self._workers

    def role(self, worker_id: WorkerId) -> Role | None:
        """Return a known worker's role."""
        known = self._workers.get(worker_id)
        return known.report.role if known is not None else None

    def assign(self, worker_ids: Iterable[WorkerId | None]) -> None:
        """Count a request as placed on these workers."""
        self._assigned.update(each for each in worker_ids if each is not None)

    def unassign(self, worker_ids: Iterable[WorkerId | None]) -> None:
        """Count a request as no longer there."""
        for worker_id in worker_ids:
            if worker_id is not None:
                self._assigned[worker_id] -= 1
                if self._assigned[worker_id] <= 0:
                    del self._assigned[worker_id]

    def silent(self, now: float) -> list[WorkerId]:
        """Return workers that have not reported for too long."""
        return [
            worker_id
            for worker_id, worker in self._workers.items()
            if worker.is_suspect or now - worker.seen_at > SILENT_AFTER_S
        ]

    def views(self, role: Role) -> list[WorkerView]:
        """Return the workers of a role that take work."""
        free_blocks = self._free_blocks()
        return [
            WorkerView(
                worker_id=report.worker_id,
                host_id=report.host_id,
                num_free_seats=report.num_seats - self._assigned[report.worker_id],
                num_assigned=self._assigned[report.worker_id],
                num_free_blocks=free_blocks.get(report.host_id, 0),
                kv_class=report.kv_class,
            )
            for report in self._reports(role)
            if not report.is_draining
            and report.host_id is not None
            and not self._workers[report.worker_id].is_suspect
        ]

    def max_num_blocks(self) -> int | None:
        """Return the size of the largest pool, or None while nobody has told one."""
        # A decode worker tells it too, and is known before anything is placed.
        reports = [*self._reports("kv"), *self._reports("decode")]
        return max((each.num_blocks for each in reports if each.num_blocks), default=None)

    def _free_blocks(self) -> dict[HostId, int]:
        return {
            report.host_id: report.num_free_blocks
            for report in self._reports("kv")
            if report.host_id is not None
        }

    def _reports(self, role: Role) -> list[WorkerReport]:
        return [each.report for each in self._workers.values() if each.report.role == role]
