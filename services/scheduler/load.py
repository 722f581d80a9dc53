"""What waits and what could run it: the planner, fed by records, reports and endings."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from slipstream.services.scheduler.admission import AdmittedRequest
from slipstream.services.scheduler.deadlines import Deadlines
from slipstream.services.scheduler.records import RequestRecord
from slipstream.shared.config import SchedulerConfig
from slipstream.shared.ids import HostId, RequestId
from slipstream.shared.messages.common import Role
from slipstream.shared.messages.generate import GenerateRequest
from slipstream.shared.messages.reports import EndedSequence, WorkerReport
from slipstream.shared.scheduling.classes import DEFAULT_CLASS
from slipstream.shared.scheduling.door import (
    TooLate,
    is_certain,
    judge,
    least_rate,
    outlook_of,
    retry_ms,
)
from slipstream.shared.scheduling.fleet import Fleet
from slipstream.shared.scheduling.placed import Placement
from slipstream.shared.scheduling.placement import NO_CACHE, PlacementRules
from slipstream.shared.scheduling.planner import Planner
from slipstream.shared.scheduling.prefix_map import PrefixMap
from slipstream.shared.scheduling.queue import WaitingQueue
from slipstream.shared.scheduling.wait_estimate import WaitEstimate
from slipstream.shared.scheduling.waiting import WaitingRequest
from slipstream.shared.scheduling.workload import OutputLengths, Rates, work_s

_LEARNED = 0.1  # the part of each speed that is told in the average
_WORTH_PART = 0.1  # of the queue
_NOBODY = RequestId("")  # asks only what would be
_MIN_TIMED_TOKENS = 8  # of an answer, that its speed says something


@dataclass(frozen=True, slots=True)
class Next:
    """Whose turn it is, and where it goes."""

    record: RequestRecord
    placement: Placement


class Load:
    """Owns the waiting queue, and what is learned of the requests that went through it."""

    def __init__(self, config: SchedulerConfig, fleet: Fleet) -> None:
        self.fleet = fleet
        self.queue = WaitingQueue(
            config.max_num_waiting,
            config.max_waiting_bytes,
            config.policy,
            config.weights_of_tenants,
        )
        rules = PlacementRules(
            min_num_remote_tokens=config.min_num_remote_tokens,
            num_reserved_seats=config.num_reserved_seats,
        )
        self.prefixes = PrefixMap()
        self._planner = Planner(self.queue, fleet, rules)
        self._estimate = WaitEstimate()
        self._lengths = OutputLengths()
        self._rates = Rates()
        self._prompt_speeds: dict[Role, float] = {}  # tokens a second, of the workers of a role
        self._records: dict[RequestId, RequestRecord] = {}  # that wait
        self._ages = Deadlines(self._records.__contains__)

    def judge_read(self, request: GenerateRequest, deadline_ms: int) -> TooLate | None:
        """Tell whether a request would wait too long, before its text is looked at."""
        if is_certain(self.queue, deadline_ms / 1000):
            return None
        now = time.monotonic()
        waiting = WaitingRequest(
            request_id=_NOBODY,
            arrived_at=now,
            num_prompt_tokens=1,
            tenant=request.tenant or "",
            latency_class=request.latency_class or DEFAULT_CLASS,
            deadline_at=now + deadline_ms / 1000,
            is_patient=request.deadline_ms is not None,
        )
        return self._judge(waiting, now)

    def judge(self, request: AdmittedRequest) -> TooLate | None:
        """Tell whether an admitted request would be answered too late."""
        if is_certain(self.queue, request.deadline_ms / 1000):
            return None
        now = time.monotonic()
        return self._judge(self._waiting(request, now, now + request.deadline_ms / 1000), now)

    def add(self, record: RequestRecord, *, is_first: bool = False) -> None:
        """Let a record wait for its turn; `is_first` for one that had it already."""
        waiting = replace(
            self._waiting(record.request, record.arrived_at, record.deadline.at),
            request_id=record.request_id,
            # The prompt of a request counts once, for all its choices and attempts.
            is_charged=record.is_charged or record.choice > 0,
        )
        self._records[record.request_id] = record
        self._planner.add(waiting, time.monotonic(), is_first=is_first)
        if waiting.max_queue_s < math.inf and not is_first:
            self._ages.look_at(record.request_id, record.arrived_at + waiting.max_queue_s)

    def next(self) -> Next | None:
        """Take the next record that has somewhere to go."""
        now = time.monotonic()
        planned = self._planner.next(
            now,
            lambda request_id: self._records[request_id].avoid,
            lambda request_id: self._cached(self._records[request_id].request),
        )
        if planned is None:
            # Without a worker the queue stands still, and that says nothing of how fast it moves.
            is_moving = bool(len(self.queue) and self.fleet.num_open("decode"))
            self._estimate.looked(now, is_anyone_left=is_moving)
            return None
        record = self._records.pop(planned.request.request_id)
        if not record.is_charged:
            self._estimate.took(planned.request.work_s, now)
        record.is_charged = True
        record.job_priority = planned.job_priority
        return Next(record, planned.placement)

    def remove(self, request_id: RequestId) -> bool:
        """Take a record out of the queue; False if it doesn't wait."""
        self._records.pop(request_id, None)
        return self.queue.remove(request_id) is not None

    def waiting(self) -> list[RequestRecord]:
        """Return all records that wait, in no order."""
        return list(self._records.values())

    def too_old(self) -> list[RequestRecord]:
        """Return the records that have waited for longer than their class promises."""
        self._ages.compact(len(self._records))
        return [self._records[each] for each in self._ages.due(time.monotonic())]

    def generated(self, record: RequestRecord, num_tokens: int) -> None:
        """Charge a tenant for output that a record has by now."""
        num_new = num_tokens - record.num_charged_tokens
        if num_new > 0:
            record.num_charged_tokens = num_tokens
            self.queue.counters.charge(record.request.tenant, num_new)

    def ended(self, record: RequestRecord, ended: EndedSequence) -> None:
        """Learn from an answer how long answers are, and how fast they come."""
        usage, request = ended.usage, record.request
        if usage is None:
            return
        num_tokens = usage.num_output_tokens
        self.generated(record, num_tokens)
        if ended.finish_reason == "abort":
            return
        self._lengths.learn(request.tenant, request.latency_class, num_tokens)
        stream_s = (ended.total_ms - ended.ttft_ms) / 1000
        if num_tokens > _MIN_TIMED_TOKENS and stream_s > 0:
            self._rates = self._rates.with_stream(num_tokens / stream_s)

    def saw(self, report: WorkerReport) -> None:
        """Learn from a report how fast prompts are computed."""
        speed = report.prompt_tokens_per_s
        if speed <= 0:
            return
        known = self._prompt_speeds.get(report.role, speed)
        self._prompt_speeds[report.role] = known + _LEARNED * (speed - known)
        # Where there are prefill workers most prompts are theirs.
        is_theirs = self.fleet.num_open("prefill") > 0 and "prefill" in self._prompt_speeds
        role: Role = "prefill" if is_theirs else report.role
        self._rates = replace(self._rates, prompt_tokens_per_s=self._prompt_speeds[role])

    def retry_ms(self) -> int:
        """Return when a part of the queue will be gone that is worth coming back for."""
        wait_s = self._estimate.wait_s(self.queue.work_s, least_rate(self.fleet))
        return retry_ms(_WORTH_PART * (wait_s or 0.0))

    def _judge(self, waiting: WaitingRequest, now: float) -> TooLate | None:
        if not self.fleet.num_open("decode"):
            return None  # somebody may come
        is_speed_known = bool(self._prompt_speeds)
        outlook = outlook_of(
            self.queue, self.fleet, self._estimate, self._rates, is_speed_known=is_speed_known
        )
        return judge(waiting, outlook, now)

    def _cached(self, request: AdmittedRequest) -> Mapping[HostId, int]:
        """Return how many tokens of a prompt each host holds, where it holds any."""
        if request.sampling.num_prompt_logprobs is not None:
            return NO_CACHE  # all of it is computed
        return self.prefixes.num_cached_tokens(request.hashes, self.fleet.kv_class)

    def _waiting(
        self, request: AdmittedRequest, arrived_at: float, deadline_at: float | None
    ) -> WaitingRequest:
        sampling, num_prompt_tokens = request.sampling, len(request.prompt_token_ids)
        num_cached = max(self._cached(request).values(), default=0)
        num_expected = self._lengths.expect(
            request.tenant, request.latency_class, sampling.max_tokens
        )
        return WaitingRequest(
            request_id=_NOBODY,
            arrived_at=arrived_at,
            num_prompt_tokens=num_prompt_tokens,
            num_expected_tokens=num_expected,
            num_cached_tokens=num_cached,
            work_s=work_s(num_prompt_tokens - num_cached, num_expected, self._rates),
            prefill_s=(num_prompt_tokens - num_cached) / self._rates.prompt_tokens_per_s,
            tenant=request.tenant,
            latency_class=request.latency_class,
            priority=request.priority,
            deadline_at=deadline_at,
            num_bytes=request.num_bytes,
            route=request.route,
            is_patient=request.is_patient,
            wants_prompt_logprobs=sampling.num_prompt_logprobs is not None,
        )
