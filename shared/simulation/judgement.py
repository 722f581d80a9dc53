"""How near a simulation comes to what was seen live."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.shared.simulation.cluster import ClusterSettings
from slipstream.shared.simulation.costs import Costs
from slipstream.shared.simulation.live_record import LiveRecord
from slipstream.shared.simulation.requests import SimulatedRequest
from slipstream.shared.simulation.results import percentiles
from slipstream.shared.simulation.run import Simulation

_JUDGED = (50, 95)


class Times(NamedTuple):
    """When a request was asked, had its first and its last token; and how many it had."""

    asked_at: float
    first_at: float
    ended_at: float
    num_tokens: int


Run = Sequence[Times]


@dataclass(frozen=True, slots=True)
class Seen:
    """The figures that are compared."""

    ttft_p50_s: float
    ttft_p95_s: float
    tokens_per_s: float  # of output, from the first question to the last token

    @classmethod
    def of(cls, runs: Sequence[Run]) -> "Seen":
        """Return those of all requests of some runs."""
        p50, p95 = percentiles([t.first_at - t.asked_at for run in runs for t in run], _JUDGED)
        seconds = sum(max(t.ended_at for t in run) - min(t.asked_at for t in run) for run in runs)
        num_tokens = sum(t.num_tokens for run in runs for t in run)
        return cls(p50, p95, num_tokens / seconds)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Simulated and live figures of the same requests."""

    live_runs: tuple[Run, ...]
    simulated_runs: tuple[Run, ...]

    def __add__(self, other: "Judgement") -> "Judgement":
        """Return the judgement by the requests of both."""
        return Judgement(
            self.live_runs + other.live_runs, self.simulated_runs + other.simulated_runs
        )

    @property
    def live(self) -> Seen:
        """What clients saw."""
        return Seen.of(self.live_runs)

    @property
    def simulated(self) -> Seen:
        """What they would have seen."""
        return Seen.of(self.simulated_runs)

    @property
    def errors(self) -> dict[str, float]:
        """How far each simulated figure is off, in parts of the live one."""
        live, simulated = self.live, self.simulated
        return {
            name: getattr(simulated, name) / getattr(live, name) - 1
            for name in ("ttft_p50_s", "ttft_p95_s", "tokens_per_s")
        }


def judge_by(
    records: Sequence[LiveRecord],
    requests: Sequence[SimulatedRequest],
    cluster: ClusterSettings,
    costs: Costs,
    first_judged: int = 0,
) -> Judgement:
    """
    Simulate what was served live, request by request, and compare.

    All are simulated, at the times at which they were really sent; those from `first_judged` on
    are compared. The requests are used up.
    """
    for record, request in zip(records, requests, strict=True):
        request.arrived_at = record.arrived_at
    Simulation(cluster, costs).serve(sorted(requests, key=lambda each: each.arrived_at))
    live = [
        Times(each.arrived_at, each.first_at, each.ended_at, each.num_output_tokens)
        for each in records[first_judged:]
    ]
    simulated = [
        Times(each.arrived_at, each.first_at or 0.0, each.ended_at or 0.0, each.num_output_tokens)
        for each in requests[first_judged:]
    ]
    return Judgement((live,), (simulated,))
