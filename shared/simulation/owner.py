"""What workers are told once, and whom they tell what they did."""

from dataclasses import dataclass
from typing import Protocol

from slipstream.shared.ids import WorkerId
from slipstream.shared.simulation.requests import SimulatedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRules:
    """Settings of workers; the defaults are theirs, see `PrefillConfig` and `DecodeConfig`."""

    num_prefill_seats: int = 64
    num_decode_seats: int = 32
    token_budget: int = 512
    prompt_step_s: float = 0.1
    step_stretch: float = 2.3


class RequestOwner(Protocol):
    """Hears what became of its requests."""

    def prompt_computed(self, request: SimulatedRequest, worker_id: WorkerId) -> None:
        """A prompt is computed, and its first token chosen."""

    def answer_ended(self, request: SimulatedRequest) -> None:
        """The last token of an answer is chosen."""
