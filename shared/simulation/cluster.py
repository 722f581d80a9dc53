"""Workers on hosts and their scheduler, wired as they are over the bus."""

from dataclasses import dataclass, field
from functools import partial

from slipstream.shared.config import SchedulerConfig
from slipstream.shared.ids import HostId, WorkerId
from slipstream.shared.messages.common import Role
from slipstream.shared.messages.reports import WorkerReport
from slipstream.shared.scheduling.fleet import Fleet
from slipstream.shared.scheduling.placement import PlacementRules
from slipstream.shared.scheduling.planner import Planned, Planner
from slipstream.shared.scheduling.queue import Policy, WaitingQueue
from slipstream.shared.simulation.costs import Costs
from slipstream.shared.simulation.decode_worker import DecodeWorker
from slipstream.shared.simulation.events import EventLoop
from slipstream.shared.simulation.host import Host
from slipstream.shared.simulation.owner import WorkerRules
from slipstream.shared.simulation.prefill_worker import PrefillWorker
from slipstream.shared.simulation.requests import SimulatedRequest
from slipstream.shared.simulation.results import Ledger
from slipstream.shared.simulation.scheduler import AdmissionRules, Scheduler

_CHARGED_EVERY_S = 0.3  # as often as workers report what they generated
_KV_CLASS = "simulated"  # KV may be moved between all hosts
_NEWS = 0.1  # a rate is told again when it has changed by this part


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """How many of what, and by which rules."""

    num_prefill: int = 1
    num_decode: int = 1
    num_hosts: int = 1
    is_apart: bool = False  # prefill workers are on hosts of their own
    policy: Policy = SchedulerConfig.policy
    max_num_waiting: int = SchedulerConfig.max_num_waiting
    max_waiting_bytes: int = SchedulerConfig.max_waiting_bytes
    placement: PlacementRules = field(default_factory=PlacementRules)
    admission: AdmissionRules = field(default_factory=AdmissionRules)
    workers: WorkerRules = field(default_factory=WorkerRules)


class Cluster:
    """Owns all that is simulated; requests go in by `take`, and end in the ledger."""

    def __init__(
        self,
        loop: EventLoop,
        settings: ClusterSettings,
        costs: Costs,
        ledger: Ledger,
        *,
        is_stepwise: bool = False,
    ) -> None:
        self.loop = loop
        self._costs = costs
        self._delays = costs.delays
        self._rules = settings.workers
        self._ledger = ledger
        self.prefill: dict[WorkerId, PrefillWorker] = {}
        self.decode: dict[WorkerId, DecodeWorker] = {}
        self.fleet = Fleet()
        queue = WaitingQueue(settings.max_num_waiting, settings.max_waiting_bytes, settings.policy)
        planner = Planner(queue, self.fleet, settings.placement)
        self.scheduler = Scheduler(loop, planner, settings.admission, self._dispatch, self._refuse)
        self._told: dict[WorkerId, float] = {}  # rates
        self._num_reports = 0
        self._placed: dict[str, Planned] = {}
        self._add_workers(settings, is_stepwise=is_stepwise)
        self._is_fair = settings.policy == "fair"
        self._is_charging = False

    def take(self, request: SimulatedRequest) -> None:
        """Let a client ask."""
        self._ledger.asked(request)
        if self._is_fair and not self._is_charging:
            self._is_charging = True
            self.loop.after(_CHARGED_EVERY_S, self._charge)
        self.loop.after(self._delays.admit_s, partial(self.scheduler.admit, request))

    def prompt_computed(self, request: SimulatedRequest, worker_id: WorkerId) -> None:
        """Hand a request over, or tell that its first token is on its way."""
        now, delays, prefill = self.loop.now, self._delays, self.prefill.get(worker_id)
        if prefill is None:
            request.first_at = now + delays.answer_s
            self.loop.after(delays.report_s, partial(self._report_prompt, request, worker_id))
            return
        seconds = delays.hand_over_s
        placement = self._placed[request.request_id].placement
        if prefill.host.host_id != placement.host_id:
            seconds += delays.pull_token_s * request.num_prompt_tokens
        request.first_at = now + seconds
        decode = self.decode[placement.decode_worker_id]
        self.loop.after(seconds, partial(decode.take_stream, request))
        self.loop.after(seconds + delays.report_s, partial(self._report_prompt, request, worker_id))

    def answer_ended(self, request: SimulatedRequest) -> None:
        """End a request for its client, and soon for the scheduler."""
        request.ended_at = max(self.loop.now + self._delays.answer_s, request.first_at or 0.0)
        self.loop.after(self._delays.report_s, partial(self._report_end, request))

    def check_integrity(self) -> None:
        """Raise AssertionError unless nothing is held by anybody."""
        assert not self._placed, f"{len(self._placed)} requests have not ended"
        assert not self.scheduler.num_waiting, "requests wait that nobody will ever place"
        for worker_id in (*self.prefill, *self.decode):
            view = self.fleet.view(worker_id)
            assert view.num_assigned == 0, f"{worker_id} has {view.num_assigned} seats taken"
            assert len(view.window) == 0, f"the window of {worker_id} is not empty"
        for each in self.decode.values():
            assert not len(each.streams), f"{each.worker_id} has streams"
            assert not len(each.prompts), f"{each.worker_id} has prompts"

    def _add_workers(self, settings: ClusterSettings, *, is_stepwise: bool) -> None:
        names = [HostId(f"host-{number}") for number in range(settings.num_hosts)]
        hosts = self._hosts(names)
        others = hosts
        if settings.is_apart:
            others = self._hosts([HostId(f"{each}-prefill") for each in names])
        for number in range(settings.num_prefill):
            name = WorkerId(f"prefill-{number}")
            host = others[number % len(others)]
            self.prefill[name] = PrefillWorker(
                name, host, self.loop, self._costs, self._rules, self
            )
            self._tell(name, "prefill", host.host_id, 0.0)
        for number in range(settings.num_decode):
            name = WorkerId(f"decode-{number}")
            host = hosts[number % len(hosts)]
            self.decode[name] = DecodeWorker(
                name, host, self.loop, self._costs, self._rules, self, is_stepwise=is_stepwise
            )
            self._tell(name, "decode", host.host_id, 0.0)

    def _hosts(self, names: list[HostId]) -> list[Host]:
        return [Host(name, is_shared=self._costs.are_cores_shared) for name in names]

    def _tell(self, worker_id: WorkerId, role: Role, host_id: HostId, rate: float) -> None:
        self._num_reports += 1
        is_prefill = role == "prefill"
        num_seats = self._rules.num_prefill_seats if is_prefill else self._rules.num_decode_seats
        report = WorkerReport(
            worker_id=worker_id,
            role=role,
            epoch=1,
            number=self._num_reports,
            num_seats=num_seats,
            num_free_seats=num_seats,
            host_id=host_id,
            kv_class=_KV_CLASS,
            prompt_tokens_per_s=rate,
        )
        self.fleet.saw(report, self.loop.now)

    def _dispatch(self, request: SimulatedRequest, planned: Planned) -> None:
        request.placed_at = self.loop.now
        request.job_priority = planned.job_priority
        self._placed[request.request_id] = planned
        placement = planned.placement
        self._ledger.placed(request, placement.reason)
        if placement.prefill_worker_id is not None:
            take = self.prefill[placement.prefill_worker_id].take
        else:
            take = self.decode[placement.decode_worker_id].take_prompt
        self.loop.after(self._delays.dispatch_s, partial(take, request))

    def _refuse(self, request: SimulatedRequest, reason: str) -> None:
        request.refusal = reason
        self._ledger.refused(request, self.loop.now)

    def _report_prompt(self, request: SimulatedRequest, worker_id: WorkerId) -> None:
        prefill = self.prefill.get(worker_id)
        worker = prefill or self.decode[worker_id]
        rate = worker.rate.tokens_per_s
        if abs(rate - self._told.get(worker_id, 0.0)) > _NEWS * rate:
            self._told[worker_id] = rate
            role: Role = "prefill" if prefill is not None else "decode"
            self._tell(worker_id, role, worker.host.host_id, rate)
        self.scheduler.prompt_done(request)

    def _report_end(self, request: SimulatedRequest) -> None:
        del self._placed[request.request_id]
        self._ledger.ended(request)
        self.scheduler.ended(request)

    def _charge(self) -> None:
        for worker in self.decode.values():
            for request, num_tokens in worker.charges():
                self.scheduler.charge(request, num_tokens)
        self._is_charging = not self._ledger.is_over
        if self._is_charging:
            self.loop.after(_CHARGED_EVERY_S, self._charge)
