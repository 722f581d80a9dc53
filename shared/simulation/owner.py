"""What workers are told once, and whom they tell what they did."""

from dataclasses import dataclass
from typing import Protocol

from slipstream.shared.config import DecodeConfig, PrefillConfig
from slipstream.shared.ids import WorkerId
from slipstream.shared.simulation.requests import SimulatedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRules:
    """Settings of workers."""

    num_prefill_seats: int = PrefillConfig.num_seats
    num_decode_seats: int = DecodeConfig.num_seats
    token_budget: int = PrefillConfig.token_budget
    prompt_step_s: float = PrefillConfig.prompt_step_ms / 1000
    step_stretch: float = DecodeConfig.step_stretch


class RequestOwner(Protocol):
    """Hears what became of its requests."""

    def prompt_computed(self, request: SimulatedRequest, worker_id: WorkerId) -> None:
        """A prompt is computed, and its first token chosen."""

    def answer_ended(self, request: SimulatedRequest) -> None:
        """The last token of an answer is chosen."""
