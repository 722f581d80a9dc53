"""A request as the queue sees it. Pure data."""

import math
from dataclasses import dataclass

from slipstream.shared.ids import RequestId
from slipstream.shared.messages.common import LatencyClassName, Route
from slipstream.shared.scheduling.classes import CLASSES, DEFAULT_CLASS, LatencyClass

_SURE_PART = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRequest:
    """What order and placement go by. Times are seconds of one monotonic clock."""

    request_id: RequestId
    arrived_at: float
    num_prompt_tokens: int
    num_expected_tokens: int = 0  # of output, by what was seen; never `max_tokens` alone
    num_cached_tokens: int = 0  # of the prompt, where most of it is cached
    work_s: float = 0.0  # of an engine, alone
    prefill_s: float = 0.0  # of it, for the prompt
    tenant: str = ""
    latency_class: LatencyClassName = DEFAULT_CLASS
    priority: int = 0
    deadline_at: float | None = None
    is_charged: bool = False  # its tenant has paid for the prompt: it comes back, or is a choice
    is_patient: bool = False  # its client has said how long it waits: until the deadline
    num_bytes: int = 0
    route: Route = "auto"
    wants_prompt_logprobs: bool = False

    @property
    def num_uncached_tokens(self) -> int:
        """Tokens of the prompt that must be computed."""
        return self.num_prompt_tokens - self.num_cached_tokens

    @property
    def max_queue_s(self) -> float:
        """How long it may have waited, apart from its deadline."""
        return math.inf if self.is_patient else self.of_class.ttft_target_s

    @property
    def max_wait_s(self) -> float:
        """How long it may be going to wait, so that its first token comes as its class promises."""
        # Estimates err: a quarter of the time is kept for that. A prompt that takes longer by
        # itself is served all the same.
        return max(_SURE_PART * self.max_queue_s - self.prefill_s, self.max_queue_s / 2)

    @property
    def of_class(self) -> LatencyClass:
        """Its class."""
        return CLASSES[self.latency_class]
