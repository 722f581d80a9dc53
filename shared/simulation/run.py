"""A simulation from its first request to its last answer."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from slipstream.shared.simulation.cluster import Cluster, ClusterSettings
from slipstream.shared.simulation.costs import Costs
from slipstream.shared.simulation.events import EventLoop
from slipstream.shared.simulation.load import RequestMaker
from slipstream.shared.simulation.requests import SimulatedRequest
from slipstream.shared.simulation.results import NO_TARGETS, Figures, Ledger, Targets


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation found."""

    ledger: Ledger
    num_events: int
    prefill_busy: float  # part of the time that workers of a role computed
    decode_busy: float

    @property
    def figures(self) -> Figures:
        """Of all requests."""
        return Figures.of(self.ledger.all, self.ledger.seconds)


class Simulation:
    """One cluster, one load."""

    def __init__(
        self,
        settings: ClusterSettings,
        costs: Costs,
        targets: Targets = NO_TARGETS,
        *,
        is_stepwise: bool = False,
    ) -> None:
        self.loop = EventLoop()
        self.ledger = Ledger(targets)
        self.cluster = Cluster(self.loop, settings, costs, self.ledger, is_stepwise=is_stepwise)

    def serve(self, requests: Iterable[SimulatedRequest]) -> Outcome:
        """Serve requests that come when they come, in order."""
        self._await_next(iter(requests))
        return self._run()

    def serve_streams(self, maker: RequestMaker, num_streams: int, num_requests: int) -> Outcome:
        """Serve clients each of which asks again as soon as it has its answer."""
        num_left = num_requests

        def ask(at: float) -> None:
            nonlocal num_left
            if num_left > 0:
                num_left -= 1
                self.loop.at(at, partial(self.cluster.take, maker.make(at)))

        def ask_again(request: SimulatedRequest) -> None:
            ask(max(self.loop.now, request.ended_at or 0.0))

        self.ledger.on_over = ask_again
        for _ in range(num_streams):
            ask(0.0)
        return self._run()

    def _await_next(self, requests: Iterator[SimulatedRequest]) -> None:
        """Plan one arrival at a time: there may be millions to come."""
        request = next(requests, None)
        if request is not None:
            self.loop.at(request.arrived_at, partial(self._arrive, request, requests))

    def _arrive(self, request: SimulatedRequest, others: Iterator[SimulatedRequest]) -> None:
        self._await_next(others)
        self.cluster.take(request)

    def _run(self) -> Outcome:
        self.loop.run()
        self.cluster.check_integrity()
        seconds = self.ledger.seconds
        prefill = [each.busy_s for each in self.cluster.prefill.values()]
        decode = [each.busy_s for each in self.cluster.decode.values()]
        return Outcome(
            self.ledger, self.loop.num_events, _part(prefill, seconds), _part(decode, seconds)
        )


def _part(busy_s: list[float], seconds: float) -> float:
    return sum(busy_s) / (len(busy_s) * seconds) if busy_s and seconds > 0 else 0.0
