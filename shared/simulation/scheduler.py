"""The scheduler: the live one's admission, queue and placement, on a clock that jumps."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from slipstream.shared.scheduling.door import Outlook, judge
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

    deadline_s: float = 300.0  # of requests in the queue
    rates: Rates = field(default_factory=Rates)
    is_door_open: bool = False  # let everybody in who fits into the queue, however late
    # What frees room within so long leads to one look at the queue, as in a scheduler that is busy.
    look_every_s: float = 0.0


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
        self._deadlines: deque[SimulatedRequest] = deque()  # all have the same time
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
        if not self._rules.is_door_open and judge(waiting, self._outlook(), now):
            self._refuse(request, "too_late")
            return
        is_first = not self._waiting
        self._waiting[request.request_id] = request
        self._deadlines.append(request)
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

    def _outlook(self) -> Outlook:
        return Outlook(
            queue=self._planner.queue,
            estimate=self._estimate,
            least_rate=0.5 * self._planner.fleet.num_open("decode"),
            busy_s=0.0,
            has_free_seats=False,
            is_speed_known=False,  # deadlines are looked at in the queue
        )

    def _as_waiting(self, request: SimulatedRequest) -> WaitingRequest:
        expected = self._lengths.expect(request.tenant, request.latency_class, request.max_tokens)
        return WaitingRequest(
            request_id=request.request_id,
            arrived_at=request.arrived_at,
            num_prompt_tokens=request.num_prompt_tokens,
            num_expected_tokens=expected,
            work_s=work_s(request.num_prompt_tokens, expected, self._rules.rates),
            tenant=request.tenant,
            latency_class=request.latency_class,
            priority=request.priority,
            num_bytes=4 * request.num_prompt_tokens,
            route=request.route,
        )

    def _drop_late(self, now: float) -> None:
        deadlines, limit_s = self._deadlines, now - self._rules.deadline_s
        while deadlines and (
            deadlines[0].placed_at is not None or deadlines[0].arrived_at <= limit_s
        ):
            request = deadlines.popleft()
            if self._waiting.pop(request.request_id, None) is not None:
                self._planner.queue.remove(request.request_id)
                self._refuse(request, "deadline_exceeded")
