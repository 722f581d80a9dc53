"""What was seen of each request of a run, and the run around them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.shared.measure.load.requests import PlannedRequest


@dataclass(eq=False, slots=True)
class Sample:
    """
    One request; times are seconds since the run began.

    It counts from the moment it was due, not from when it was sent: a client that is held up
    must not hide what its requests waited for.
    """

    request: PlannedRequest
    due_s: float
    sent_s: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # when so many tokens came
    token_ids: list[int] = field(default_factory=list)  # those, where a stack was asked
    ended_s: float | None = None
    error: str | None = None
    queue_ms: float | None = None  # in the scheduler's queue, as it said
    num_cached_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Output tokens that came."""
        return sum(num_tokens for _, num_tokens in self.arrivals)

    @property
    def is_served(self) -> bool:
        """The answer is there, as long as it was asked for."""
        is_whole = self.num_tokens == self.request.num_output_tokens
        return self.ended_s is not None and self.error is None and is_whole

    @property
    def ttft_ms(self) -> float | None:
        """Time to the first token; None if there was none."""
        return (self.arrivals[0][0] - self.due_s) * 1000 if self.arrivals else None

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first ones; None if there were no others."""
        num_later = self.num_tokens - self.arrivals[0][1] if self.arrivals else 0
        if num_later == 0:
            return None
        return (self.arrivals[-1][0] - self.arrivals[0][0]) * 1000 / num_later


@dataclass(frozen=True)
class LoadRun:
    """One run of a load. Figures are taken of a window: before it the system fills up."""

    samples: Sequence[Sample]
    begin_s: float
    end_s: float
    client_cpu_share: float = 0.0  # of one core, that the load generator took

    @property
    def seconds(self) -> float:
        """How long the window is."""
        return self.end_s - self.begin_s

    def holds(self, moment_s: float) -> bool:
        """Tell whether a moment lies in the window."""
        return self.begin_s <= moment_s < self.end_s
