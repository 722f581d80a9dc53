"""A decode worker: streams, and prompts beside them at the pace of the live one."""

from functools import partial

from slipstream.shared.ids import WorkerId
from slipstream.shared.simulation.costs import Costs
from slipstream.shared.simulation.events import EventLoop
from slipstream.shared.simulation.host import Host
from slipstream.shared.simulation.owner import RequestOwner, WorkerRules
from slipstream.shared.simulation.prompt_desk import NO_CHUNKS, Chunks, PromptDesk
from slipstream.shared.simulation.requests import SimulatedRequest
from slipstream.shared.simulation.stream_batch import StreamBatch
from slipstream.shared.worker.pace import Pace
from slipstream.shared.worker.step_cost import StepCost
from slipstream.shared.worker.throughput import Throughput


class DecodeWorker:
    """
    Sequences join and leave between steps.

    While there are streams only it looks ahead to the next step after which something changes:
    one ends, or somebody has come. With `is_stepwise` it does each step by itself.
    """

    def __init__(
        self,
        worker_id: WorkerId,
        host: Host,
        loop: EventLoop,
        costs: Costs,
        rules: WorkerRules,
        owner: RequestOwner,
        *,
        is_stepwise: bool = False,
    ) -> None:
        self.worker_id = worker_id
        self.host = host
        self.rate = Throughput()
        self.busy_s = 0.0
        self._loop = loop
        self._costs = costs
        self._owner = owner
        self._max_num_steps = 1 if is_stepwise else 2**62
        cost = StepCost(costs.steps.priors())
        self._pace = Pace(rules.token_budget, rules.step_stretch, rules.prompt_step_s, cost)
        self.prompts = PromptDesk(loop, rules.token_budget, costs.delays.lease_s, self._came)
        self.streams = StreamBatch(costs)
        self._joining: list[SimulatedRequest] = []  # streams, from the next step on
        self._began_at: float | None = None  # the steps that run; None: none does
        self._num_planned = 0  # of them, if nobody comes; 0: one with prompts in it
        self._plan_number = 0
        host.join(self)

    def take_prompt(self, request: SimulatedRequest) -> None:
        """Take a request whose prompt is to be computed here."""
        self.prompts.add(request)

    def take_stream(self, request: SimulatedRequest) -> None:
        """Take a request that has its first token."""
        if request.num_output_tokens == 1:
            self._owner.answer_ended(request)
            return
        self._joining.append(request)
        self._came()

    def neighbours_changed(self) -> None:
        """The steps that were planned last as long as they would; from the next on it's new."""
        self._look_again()

    def charges(self) -> list[tuple[SimulatedRequest, int]]:
        """Return how many tokens each running stream has brought by now."""
        num_steps = 0
        if self._began_at is not None and self._num_planned:
            passed_s = self._loop.now - self._began_at
            num_steps = self.streams.num_steps_by(passed_s) - 1 if passed_s > 0 else 0
        return self.streams.num_generated(num_steps)

    def _came(self) -> None:
        """Somebody waits: the steps that were planned end at the next boundary."""
        if self._began_at is None:
            self._plan()
        else:
            self._look_again()

    def _look_again(self) -> None:
        """Plan anew at the end of the step that runs."""
        if self._began_at is not None and self._num_planned > 1:
            num_steps = self.streams.num_steps_by(self._loop.now - self._began_at)
            if num_steps < self._num_planned:
                self._plan_steps(self._began_at, num_steps)

    def _plan(self) -> None:
        """Between two steps: decide what runs next."""
        for request in self._joining:
            self.streams.add(request)
        self._joining.clear()
        is_computing = bool(len(self.streams) or self.prompts.ready)
        self.host.note(self, is_computing=is_computing)
        self.streams.slowdown = 1 + self._costs.decode_slowdown * self.host.num_others(self)
        chunks = self._chunks()
        if chunks.parts:
            self._step_with(chunks)
        elif len(self.streams):
            # While prompts wait that nothing was left for, no step is like the next.
            most = 1 if self.prompts.ready else self._max_num_steps
            self._plan_steps(self._loop.now, min(self.streams.num_steps_left, most))
        else:
            self._began_at = None

    def _chunks(self) -> Chunks:
        if not self.prompts.ready:
            return NO_CHUNKS
        budget = self._pace.budget(self.streams.shape)
        if budget is None:
            return NO_CHUNKS
        by_rank = sorted(self.prompts.ready, key=lambda each: each.claim.rank, reverse=True)
        return self.prompts.plan(by_rank, budget)

    def _plan_steps(self, began_at: float, num_steps: int) -> None:
        self._began_at = began_at
        self._num_planned = num_steps
        self._plan_number += 1
        end = began_at + self.streams.seconds(num_steps)
        self._loop.at(end, partial(self._end_steps, self._plan_number, num_steps))

    def _end_steps(self, plan_number: int, num_steps: int) -> None:
        if plan_number != self._plan_number:
            return  # somebody came, and it was planned anew
        assert self._began_at is not None, "steps end that have begun"
        self.busy_s += self._loop.now - self._began_at
        ended = self.streams.step(num_steps - 1) if num_steps > 1 else []
        assert not ended, "none ends before the last step"
        shape = self.streams.shape
        # What the steps before taught is the same: a worker knows its streams, see `priors`.
        self._pace.saw(shape, NO_CHUNKS.shape, self._costs.steps.of_streams(shape))
        for request in self.streams.step(1):
            self._owner.answer_ended(request)
        self._plan()

    def _step_with(self, chunks: Chunks) -> None:
        shape, steps = self.streams.shape, self._costs.steps
        seconds = self.streams.slowdown * steps.of_step(
            shape, chunks.shape, chunks.num_context_tokens
        )
        self._began_at = self._loop.now
        self._num_planned = 0
        self._plan_number += 1
        gap_s = self._costs.delays.step_gap_s + self._costs.delays.row_gap_s * shape.num_rows
        self._loop.after(seconds + gap_s, partial(self._end_step_with, chunks, seconds))

    def _end_step_with(self, chunks: Chunks, seconds: float) -> None:
        shape = self.streams.shape
        self.busy_s += seconds
        self._pace.saw(shape, chunks.shape, seconds)
        self.rate.saw(chunks.shape.num_rows, seconds)
        ended = self.streams.step(1) if shape.num_rows else []
        for request in self.prompts.computed(chunks):
            self._owner.prompt_computed(request, self.worker_id)
            if request.num_output_tokens == 1:
                ended.append(request)
            else:
                self.streams.add(request)
        for request in ended:
            self._owner.answer_ended(request)
        self._plan()
