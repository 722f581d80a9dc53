"""Streams that step together: many steps at once, in closed form."""

import heapq
import math

from slipstream.shared.simulation.costs import Costs
from slipstream.shared.simulation.requests import SimulatedRequest
from slipstream.shared.worker.step_cost import Streams


class StreamBatch:
    """
    The running streams of a decode worker.

    While nobody comes or goes each step has the same rows, and its context grows by one token a
    stream: how long any number of steps takes is a sum of an arithmetic series.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._num_context = 0  # that the rows of the next step attend to
        self._num_steps = 0  # done
        self._ends: list[tuple[int, int, SimulatedRequest]] = []  # by the step that ends each
        self._number = 0
        self.slowdown = 1.0  # of steps that are planned from now on

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def shape(self) -> Streams:
        """What the next step costs by."""
        return Streams(len(self._ends), self._num_context)

    @property
    def num_steps_left(self) -> int:
        """Steps until the next stream ends."""
        return self._ends[0][0] - self._num_steps

    def add(self, request: SimulatedRequest) -> None:
        """Let a stream that has its first token take part from the next step on."""
        self._number += 1
        end = self._num_steps + request.num_output_tokens - 1
        heapq.heappush(self._ends, (end, self._number, request))
        self._num_context += request.num_prompt_tokens + 1

    def seconds(self, num_steps: int) -> float:
        """Return how long so many steps take, the gap behind each with them."""
        first_s, growth_s = self._first_and_growth()
        return num_steps * first_s + growth_s * (num_steps * (num_steps - 1) // 2)

    def num_steps_by(self, seconds: float) -> int:
        """Return the fewest steps that take at least so long, and at least one."""
        first_s, growth_s = self._first_and_growth()
        if growth_s <= 0:
            num_steps = math.ceil(seconds / first_s) if first_s > 0 else 1
        else:
            # growth/2 k^2 + (first - growth/2) k = seconds
            half, slope = growth_s / 2, first_s - growth_s / 2
            num_steps = math.ceil(
                2 * seconds / (slope + math.sqrt(slope * slope + 4 * half * seconds))
            )
        # The root is rounded, and may be so over a whole number.
        while num_steps > 1 and self.seconds(num_steps - 1) >= seconds:
            num_steps -= 1
        while self.seconds(num_steps) < seconds:
            num_steps += 1
        return max(1, num_steps)

    def step(self, num_steps: int) -> list[SimulatedRequest]:
        """Do so many steps, not beyond the next end; return the streams that ended."""
        self._num_context += num_steps * len(self._ends)
        self._num_steps += num_steps
        ended = []
        while self._ends and self._ends[0][0] <= self._num_steps:
            request = heapq.heappop(self._ends)[2]
            self._num_context -= request.num_prompt_tokens + request.num_output_tokens
            ended.append(request)
        return ended

    def num_generated(self, num_more_steps: int) -> list[tuple[SimulatedRequest, int]]:
        """Return what each stream has brought after some more steps."""
        done = self._num_steps + num_more_steps
        return [
            (request, request.num_output_tokens - max(0, end - done))
            for end, _, request in self._ends
        ]

    def _first_and_growth(self) -> tuple[float, float]:
        """Return how long the next step takes, and how much longer each one is than the last."""
        steps, delays, num_rows = self._costs.steps, self._costs.delays, len(self._ends)
        first_s = self.slowdown * (
            steps.step_s
            + (steps.stream_row_s + delays.row_gap_s) * num_rows
            + steps.stream_context_s * self._num_context
            + delays.step_gap_s
        )
        return first_s, self.slowdown * steps.stream_context_s * num_rows
