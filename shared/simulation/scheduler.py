"""The scheduler: the live one's admission, queue and placement, on a clock that jumps."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from slipstream.shared.config import SchedulerConfig
from slipstream.shared.messages.common import LatencyClassName
from slipstream.shared.scheduling.classes import CLASSES
from slipstream.shared.scheduling.door import is_certain, judge, outlook_of
from slipstream.shared.scheduling.planner import Planned, Planner
from slipstream.shared.scheduling.wait_estimate import WaitEstimate
from slipstream.shared.scheduling.waiting import WaitingRequest
from slipstream.shared.scheduling.workload import OutputLengths, Rates, work_s
from slipstream.shared.simulation.events import EventLoop
from slipstream.shared.simulation.requests import SimulatedRequest

Dispatch = Callable[[SimulatedRequest, Planned], None]
Refuse = Callable[[SimulatedRequest, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """What a scheduler is told, see `SchedulerConfig`."""

    # Within which requests are to be answered: judged at the door, and kept in the queue only.
    deadline_s: float = SchedulerConfig.default_deadline_ms / 1000
    batch_deadline_s: float = SchedulerConfig.max_deadline_ms / 1000
    rates: Rates = field(default_factory=Rates)
    is_door_open: bool = False  # let everybody in who fits into the queue, however late
    # What frees room within so long leads to one look at the queue, as in a scheduler that is busy.
    look_every_s: float = 0.0

    def deadline_of(self, latency_class: LatencyClassName) -> float:
        """Return within how many seconds requests of a class are to be answered."""
        return self.batch_deadline_s if latency_class == "batch" else self.deadline_s


class Scheduler:
    """Owns the requests that wait; whoever is placed is given to `dispatch`."""

    def __init__(
        self,
        loop: EventLoop,
        planner: Planner,
        rules: AdmissionRules,
        dispatch: Dispatch,
        refuse: Refuse,
    ) -> None:
        self._loop = loop
        self._planner = planner
        self._rules = rules
        self._dispatch = dispatch
        self._refuse = refuse
        self._estimate = WaitEstimate()
        self._lengths = OutputLengths()
        self._waiting: dict[str, SimulatedRequest] = {}
        # As they came: those of a class may all wait for as long.
        self._of_class: dict[LatencyClassName, deque[SimulatedRequest]] = {
            name: deque() for name in CLASSES
        }
        self._is_look_due = False

    @property
    def num_waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def admit(self, request: SimulatedRequest) -> None:
        """Let a request wait for its turn, or refuse it."""
        now, queue = self._loop.now, self._planner.queue
        waiting = self._as_waiting(request)
        if not queue.can_add(waiting.num_bytes):
            self._refuse(request, "queue_full")
            return
        if not self._is_let_in(waiting, now):
            self._refuse(request, "too_late")
            return
        is_first = not self._waiting
        self._waiting[request.request_id] = request
        self._of_class[request.latency_class].append(request)
        self._planner.add(waiting, now)
        # Who comes to an empty queue needn't wait for a look.
        if is_first:
            self._place()
        else:
            self._room()

    def _room(self) -> None:
        """Look at the queue, now or soon: there may be room for somebody."""
        if not self._waiting or self._is_look_due:
            return
        if self._rules.look_every_s:
            self._is_look_due = True
            self._loop.after(self._rules.look_every_s, self._place)
        else:
            self._place()

    def _place(self) -> None:
        """Place whoever has somewhere to go."""
        self._is_look_due = False
        now = self._loop.now
        self._drop_late(now)
        while (planned := self._planner.next(now)) is not None:
            self._estimate.took(planned.request.work_s, now)
            self._dispatch(self._waiting.pop(planned.request.request_id), planned)
        self._estimate.looked(now, is_anyone_left=bool(self._waiting))

    def prompt_done(self, request: SimulatedRequest) -> None:
        """Take in that a prompt is computed."""
        self._planner.fleet.prompt_done(request.request_id)
        self._room()

    def ended(self, request: SimulatedRequest) -> None:
        """Take in that a worker let go of a request."""
        self.charge(request, request.num_output_tokens)
        self._lengths.learn(request.tenant, request.latency_class, request.num_output_tokens)
        self._planner.fleet.unassign(request.request_id)
        self._room()

    def charge(self, request: SimulatedRequest, num_tokens: int) -> None:
        """Charge a tenant for what was generated of an answer so far."""
        more = num_tokens - request.num_charged
        if more > 0:
            request.num_charged = num_tokens
            self._planner.queue.counters.charge(request.tenant, more)

    def _is_let_in(self, waiting: WaitingRequest, now: float) -> bool:
        if self._rules.is_door_open:
            return True
        if is_certain(self._planner.queue, self._rules.deadline_of(waiting.latency_class)):
            return True
        queue, fleet = self._planner.queue, self._planner.fleet
        outlook = outlook_of(queue, fleet, self._estimate, self._rules.rates, is_speed_known=True)
        return judge(waiting, outlook, now) is None

    def _as_waiting(self, request: SimulatedRequest) -> WaitingRequest:
        rates = self._rules.rates
        expected = self._lengths.expect(request.tenant, request.latency_class, request.max_tokens)
        return WaitingRequest(
            request_id=request.request_id,
            arrived_at=request.arrived_at,
            num_prompt_tokens=request.num_prompt_tokens,
            num_expected_tokens=expected,
            work_s=work_s(request.num_prompt_tokens, expected, rates),
            prefill_s=request.num_prompt_tokens / rates.prompt_tokens_per_s,
            tenant=request.tenant,
            latency_class=request.latency_class,
            priority=request.priority,
            deadline_at=request.arrived_at + self._rules.deadline_of(request.latency_class),
            num_bytes=4 * request.num_prompt_tokens,
            route=request.route,
        )

    def _drop_late(self, now: float) -> None:
        for latency_class, requests in self._of_class.items():
            deadline_s = self._rules.deadline_of(latency_class)
            promised_s = CLASSES[latency_class].ttft_target_s
            came_by = now - min(deadline_s, promised_s)
            while requests and (
                requests[0].placed_at is not None or requests[0].arrived_at <= came_by
            ):
                request = requests.popleft()
                if self._waiting.pop(request.request_id, None) is not None:
                    self._planner.queue.remove(request.request_id)
                    is_late = deadline_s <= promised_s
                    self._refuse(request, "deadline_exceeded" if is_late else "too_old")
