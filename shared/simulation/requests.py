"""A request as the simulation knows it: what it will turn out to be, and when it got what."""

from dataclasses import dataclass

from slipstream.shared.ids import RequestId
from slipstream.shared.messages.common import LatencyClassName, Route
from slipstream.shared.scheduling.classes import DEFAULT_CLASS


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedRequest:
    """Lengths are known from the start; only the simulated services must not look."""

    request_id: RequestId
    arrived_at: float
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int
    tenant: str = ""
    latency_class: LatencyClassName = DEFAULT_CLASS
    priority: int = 0  # its own
    job_priority: int = 0  # what workers order it by, from when it is placed
    route: Route = "auto"
    placed_at: float | None = None
    first_at: float | None = None  # when its client had the first token
    ended_at: float | None = None  # and the last one
    refusal: str | None = None  # why it got none
    num_charged: int = 0  # tokens of its output that its tenant was charged for

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_at is None else self.first_at - self.arrived_at

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None for a single one."""
        if self.first_at is None or self.ended_at is None or self.num_output_tokens == 1:
            return None
        return (self.ended_at - self.first_at) / (self.num_output_tokens - 1)
