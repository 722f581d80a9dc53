"""A prefill worker: prompts share its steps by the rules of the live one."""

from slipstream.shared.ids import WorkerId
from slipstream.shared.simulation.costs import Costs
from slipstream.shared.simulation.events import EventLoop
from slipstream.shared.simulation.host import Host
from slipstream.shared.simulation.owner import RequestOwner, WorkerRules
from slipstream.shared.simulation.prompt_desk import Chunks, Prompt, PromptDesk
from slipstream.shared.simulation.requests import SimulatedRequest
from slipstream.shared.worker.step_cost import NO_STREAMS, StepCost
from slipstream.shared.worker.throughput import Throughput
from slipstream.shared.worker.urgency import PromptTurns


class PrefillWorker:
    """Computes the prompts that are sent to it, a packed step after another."""

    def __init__(
        self,
        worker_id: WorkerId,
        host: Host,
        loop: EventLoop,
        costs: Costs,
        rules: WorkerRules,
        owner: RequestOwner,
    ) -> None:
        self.worker_id = worker_id
        self.host = host
        self.rate = Throughput()
        self.busy_s = 0.0
        self._loop = loop
        self._costs = costs
        self._owner = owner
        self._cost = StepCost(costs.steps.priors())
        self._turns = PromptTurns(rules.token_budget, rules.prompt_step_s, self._cost)
        self.prompts = PromptDesk(loop, rules.token_budget, costs.delays.lease_s, self._go_on)
        self._is_stepping = False
        host.join(self)

    def take(self, request: SimulatedRequest) -> None:
        """Take a prompt."""
        self.prompts.add(request)

    def neighbours_changed(self) -> None:
        """The next step is slower or faster; the one that runs is taken as it began."""

    def _go_on(self) -> None:
        """Begin a step unless one runs, or there is nothing to do."""
        if self._is_stepping:
            return
        self.host.note(self, is_computing=bool(self.prompts.ready))
        if not self.prompts.ready:
            return
        chosen, budget = self._turns.next(self.prompts.ready, _priority_of, self._loop.now)
        chunks = self.prompts.plan(chosen, budget)
        slowdown = 1 + self._costs.prefill_slowdown * self.host.num_others(self)
        seconds = slowdown * self._costs.steps.of_step(
            NO_STREAMS, chunks.shape, chunks.num_context_tokens
        )
        self._is_stepping = True
        self.busy_s += seconds
        self._loop.after(seconds, lambda: self._end_step(chunks, seconds))

    def _end_step(self, chunks: Chunks, seconds: float) -> None:
        self._cost.learn(NO_STREAMS, chunks.shape, seconds)
        self.rate.saw(chunks.shape.num_rows, seconds)
        for request in self.prompts.computed(chunks):
            self._owner.prompt_computed(request, self.worker_id)
        self._loop.after(self._costs.delays.step_gap_s, self._next)

    def _next(self) -> None:
        self._is_stepping = False
        self._go_on()


def _priority_of(prompt: Prompt) -> int:
    return prompt.request.job_priority
