"""What a client of a live stack saw of a request, beside what the stack says of it."""

from dataclasses import dataclass

from slipstream.shared.messages.common import LatencyClassName
from slipstream.shared.scheduling.classes import DEFAULT_CLASS


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRecord:
    """Times are seconds since the load began; the last three are the stack's own."""

    arrived_at: float
    first_at: float
    ended_at: float
    num_prompt_tokens: int
    num_output_tokens: int
    tenant: str = ""
    latency_class: LatencyClassName = DEFAULT_CLASS
    queue_s: float
    prefill_s: float  # 0: its prompt was computed beside streams
    hand_over_s: float

    @property
    def prefill_ended_at(self) -> float:
        """About when its prompt was computed."""
        return self.first_at - self.hand_over_s

    @property
    def prefill_began_at(self) -> float:
        """About when its prompt had blocks."""
        return self.prefill_ended_at - self.prefill_s
