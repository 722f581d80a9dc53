"""A load: what comes when, and how long it is looked at."""

from collections.abc import Callable
from dataclasses import dataclass

from slipstream.shared.measure.load.arrivals import Arrivals
from slipstream.shared.measure.load.requests import PlannedRequest


@dataclass(frozen=True)
class Load:
    """One that can be run again and again, by a stack or by an engine."""

    arrivals: Callable[[], Arrivals]  # new ones for each run
    request: Callable[[int], PlannedRequest]
    warmup_s: float
    seconds: float  # of the window behind the warm-up
    drain_s: float  # behind the window for answers that are still missing

    @property
    def end_s(self) -> float:
        """When the window ends."""
        return self.warmup_s + self.seconds

    @property
    def give_up_s(self) -> float:
        """When nothing is waited for any more."""
        return self.end_s + self.drain_s
