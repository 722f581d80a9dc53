"""The workers as their reports show them, and what was placed on each. Pure: times are values."""

from collections import Counter, defaultdict
from dataclasses import dataclass

import msgspec

from slipstream.shared.ids import HostId, RequestId, WorkerId
from slipstream.shared.messages.common import Role
from slipstream.shared.messages.reports import WorkerReport
from slipstream.shared.scheduling.load_index import LoadIndex
from slipstream.shared.scheduling.placed import Placement, WorkerView
from slipstream.shared.scheduling.prompt_window import WINDOW_TOKENS, PromptWindow

SILENT_AFTER_S = 1.2
_WINDOW_PART = 1.0  # what a full window of prompts adds to how busy a decode worker is
_INEXACT = "/reference"  # the plain-torch engine rounds by its batch
_NUM_LEVELS = 64  # of how full a pool is: a block more or less moves no worker


@dataclass(slots=True)
class _Worker:
    report: WorkerReport
    seen_at: float
    is_suspect: bool = False  # nobody listened there; its next report clears it

    @property
    def is_open(self) -> bool:
        """It takes work."""
        report = self.report
        return not report.is_draining and report.host_id is not None and not self.is_suspect


class Fleet:
    """Owns what is known of each worker, and how many requests this scheduler placed on it."""

    def __init__(self, window_tokens: int = WINDOW_TOKENS) -> None:
        self._window_tokens = window_tokens
        self._workers: dict[WorkerId, _Worker] = {}
        self._placed: dict[RequestId, Placement] = {}
        self._assigned: Counter[WorkerId] = Counter()
        # Since the last report, less those that left: what it told of free seats is less by that.
        self._placed_since: Counter[WorkerId] = Counter()
        self._windows: dict[WorkerId, PromptWindow] = {}
        self._empty_window = PromptWindow(window_tokens)
        self._views: dict[WorkerId, WorkerView] = {}  # until something changes
        self._pools: dict[HostId, WorkerReport] = {}
        self._num_blocks: Counter[int] = Counter()  # sizes of pools, as workers tell them
        # How busy those are that take work: by role, and by role and host.
        self._loads: defaultdict[tuple[Role, HostId | None], LoadIndex] = defaultdict(LoadIndex)

    def saw(self, report: WorkerReport, now: float) -> bool:
        """Take a report; False for one that is older than what is known."""
        known = self._workers.get(report.worker_id)
        if known is not None and (report.epoch, report.number) <= (
            known.report.epoch,
            known.report.number,
        ):
            return False
        if known is not None:
            self._forget(known.report, is_moving=known.report.host_id != report.host_id)
        if _has_pool(report):
            self._num_blocks[report.num_blocks] += 1
        self._workers[report.worker_id] = _Worker(report, now)
        self._placed_since.pop(report.worker_id, None)
        if report.role == "kv" and report.host_id is not None:
            self._pools[report.host_id] = report
            on_host = self._loads.get(("decode", report.host_id))
            for worker_id in on_host.workers() if on_host is not None else ():
                self._weigh(worker_id)
        self._weigh(report.worker_id)
        return True

    def suspect(self, worker_id: WorkerId) -> None:
        """Place nothing on a worker until it reports; it counts as silent, so it is probed soon."""
        known = self._workers.get(worker_id)
        if known is not None:
            known.is_suspect = True
            self._unlist(known.report)

    def told_full(self, worker_id: WorkerId) -> None:
        """Take a worker's word that it has no seat now: its next report may say otherwise."""
        known = self._workers.get(worker_id)
        if known is not None:
            known.report = msgspec.structs.replace(known.report, num_free_seats=0)
            self._weigh(worker_id)

    def remove(self, worker_id: WorkerId) -> None:
        """Forget a worker that is gone."""
        known = self._workers.pop(worker_id, None)
        self._placed_since.pop(worker_id, None)
        if known is None:
            return
        self._views.pop(worker_id, None)
        self._forget(known.report, is_moving=True)
        if known.report.role == "kv" and known.report.host_id is not None:
            self._pools.pop(known.report.host_id, None)

    @property
    def max_num_blocks(self) -> int | None:
        """The size of the largest pool, or None while nobody has told one."""
        return max(self._num_blocks, default=None)

    def has(self, worker_id: WorkerId) -> bool:
        """Tell whether a worker is known."""
        return worker_id in self._workers

    def role(self, worker_id: WorkerId) -> Role | None:
        """Return a known worker's role."""
        known = self._workers.get(worker_id)
        return known.report.role if known is not None else None

    def host_id(self, worker_id: WorkerId) -> HostId | None:
        """Return a known worker's host, where it has one."""
        known = self._workers.get(worker_id)
        return known.report.host_id if known is not None else None

    def is_exact(self, worker_id: WorkerId) -> bool:
        """Tell whether what a worker says is the same bits whatever else is in its batch."""
        known = self._workers.get(worker_id)
        return known is None or not known.report.kv_class.endswith(_INEXACT)

    def kv_class(self, host_id: HostId) -> str:
        """Return the class of KV that decode workers of a host take, as long as one takes work."""
        loads = self._loads.get(("decode", host_id))
        worker_id = loads.any() if loads is not None else None
        return self._workers[worker_id].report.kv_class if worker_id is not None else ""

    def assign(
        self, request_id: RequestId, placement: Placement, num_prompt_tokens: int, rank: int = 0
    ) -> None:
        """Count a request as placed, with so many tokens of its prompt to compute."""
        self._placed[request_id] = placement
        for worker_id in placement.worker_ids:
            self._assigned[worker_id] += 1
            self._placed_since[worker_id] += 1
        window = self._windows.setdefault(
            placement.computes_prompt, PromptWindow(self._window_tokens)
        )
        window.give(request_id, num_prompt_tokens, rank)
        self._weigh_placed(placement)

    def prompt_done(self, request_id: RequestId) -> bool:
        """Count a request's prompt as computed; False if it was before, or isn't placed."""
        placement = self._placed.get(request_id)
        if placement is None or not self._leave_window(request_id, placement):
            return False
        if placement.prefill_worker_id is not None:
            self._leave_seat(placement.prefill_worker_id)
        self._weigh_placed(placement)
        return True

    def unassign(self, request_id: RequestId) -> None:
        """Count a request as no longer there. Repeatable."""
        self.prompt_done(request_id)
        placement = self._placed.pop(request_id, None)
        if placement is not None:
            self._leave_seat(placement.decode_worker_id)
            self._weigh_placed(placement)

    def silent(self, now: float) -> list[WorkerId]:
        """Return workers that have not reported for too long."""
        return [
            worker_id
            for worker_id, worker in self._workers.items()
            if worker.is_suspect or now - worker.seen_at > SILENT_AFTER_S
        ]

    def is_open(self, worker_id: WorkerId) -> bool:
        """Tell whether a decode worker takes work."""
        known = self._workers.get(worker_id)
        return known is not None and known.report.role == "decode" and known.is_open

    def num_open(self, role: Role, host_id: HostId | None = None) -> int:
        """Return how many workers of a role, or of those on one host, take work."""
        loads = self._loads.get((role, host_id))
        return len(loads) if loads is not None else 0

    def least_busy(
        self, role: Role, host_id: HostId | None = None, max_num: int = 1
    ) -> list[WorkerView]:
        """Return workers of a role, or of those on one host, that take work; idle ones first."""
        loads = self._loads.get((role, host_id))
        return [self.view(each) for each in loads.least(max_num)] if loads is not None else []

    def view(self, worker_id: WorkerId) -> WorkerView:
        """Return what placement needs to know of a known worker."""
        known = self._views.get(worker_id)
        if known is None:
            known = self._views[worker_id] = self._view(worker_id)
        return known

    def _view(self, worker_id: WorkerId) -> WorkerView:
        report = self._workers[worker_id].report
        assert report.host_id is not None, "only those on a host take work"
        num_assigned = self._assigned[worker_id]
        return WorkerView(
            worker_id=worker_id,
            host_id=report.host_id,
            num_seats=report.num_seats,
            num_free_seats=min(
                report.num_seats - num_assigned,
                report.num_free_seats - self._placed_since[worker_id],
            ),
            num_assigned=num_assigned,
            kv_class=report.kv_class,
            load=self._load(report),
            window=self._windows.get(worker_id, self._empty_window),
            prompt_tokens_per_s=report.prompt_tokens_per_s,
            pulled_tokens_per_s=report.pulled_tokens_per_s,
        )

    def _leave_window(self, request_id: RequestId, placement: Placement) -> bool:
        window = self._windows.get(placement.computes_prompt)
        was_there = window is not None and window.done(request_id)
        if window is not None and not len(window):
            del self._windows[placement.computes_prompt]
        return was_there

    def _leave_seat(self, worker_id: WorkerId) -> None:
        self._placed_since[worker_id] -= 1
        self._assigned[worker_id] -= 1
        if self._assigned[worker_id] <= 0:
            del self._assigned[worker_id]

    def _weigh_placed(self, placement: Placement) -> None:
        for worker_id in placement.worker_ids:
            self._weigh(worker_id)

    def _weigh(self, worker_id: WorkerId) -> None:
        """Keep a worker where it belongs among those that take work."""
        self._views.pop(worker_id, None)
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        if not worker.is_open:
            self._unlist(worker.report)
            return
        load = self._load(worker.report)
        for key in _lists_of(worker.report):
            self._loads[key].set(worker_id, load)

    def _forget(self, report: WorkerReport, *, is_moving: bool) -> None:
        if is_moving:
            self._unlist(report)
        if _has_pool(report):
            self._num_blocks[report.num_blocks] -= 1
            if not self._num_blocks[report.num_blocks]:
                del self._num_blocks[report.num_blocks]

    def _unlist(self, report: WorkerReport) -> None:
        for key in _lists_of(report):
            if key in self._loads:
                self._loads[key].remove(report.worker_id)
                if not self._loads[key]:
                    del self._loads[key]

    def _load(self, report: WorkerReport) -> float:
        """Return how busy a worker is: 1 is as much as it can do at a time."""
        window = self._windows.get(report.worker_id)
        waiting = window.num_tokens / self._window_tokens if window is not None else 0.0
        if report.role == "prefill":
            return waiting
        seats = self._assigned[report.worker_id] / max(1, report.num_seats)
        pool = self._pools.get(report.host_id) if report.host_id is not None else None
        blocks = 0.0
        if pool is not None and pool.num_blocks:
            blocks = 1 - round(_NUM_LEVELS * pool.num_free_blocks / pool.num_blocks) / _NUM_LEVELS
        return max(seats, blocks) + _WINDOW_PART * waiting


def _lists_of(report: WorkerReport) -> tuple[tuple[Role, HostId | None], ...]:
    return ((report.role, None), (report.role, report.host_id))


def _has_pool(report: WorkerReport) -> bool:
    # A decode worker tells its pool's size too, and is known before anything is placed.
    return report.role in ("kv", "decode") and report.num_blocks > 0
