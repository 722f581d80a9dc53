"""What became of the requests, and what that says: percentiles, rates, goodput."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from slipstream.shared.measure.load.summary import percentile
from slipstream.shared.scheduling.classes import CLASSES
from slipstream.shared.simulation.requests import SimulatedRequest

PERCENTS = (50, 95, 99)


@dataclass
class Served:
    """Requests of a group that were answered, column by column: there may be millions."""

    ttft_s: "array[float]" = field(default_factory=lambda: array("d"))
    tpot_s: "array[float]" = field(default_factory=lambda: array("d"))  # of those that have one
    queue_s: "array[float]" = field(default_factory=lambda: array("d"))
    num_tokens: int = 0  # of output
    num_prompt_tokens: int = 0
    num_good: int = 0  # within the targets
    num_refused: int = 0

    def add(self, request: SimulatedRequest, *, is_good: bool) -> None:
        """Take in one that was answered."""
        ttft_s, tpot_s = request.ttft_s, request.tpot_s
        assert ttft_s is not None, "it was answered"
        assert request.placed_at is not None, "it was answered"
        self.ttft_s.append(ttft_s)
        self.queue_s.append(request.placed_at - request.arrived_at)
        if tpot_s is not None:
            self.tpot_s.append(tpot_s)
        self.num_tokens += request.num_output_tokens
        self.num_prompt_tokens += request.num_prompt_tokens
        self.num_good += is_good

    @property
    def num_requests(self) -> int:
        """How many were answered."""
        return len(self.ttft_s)


@dataclass(frozen=True, slots=True)
class Targets:
    """What a request has to be served within to count as good; None: as its class says, or any."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def are_kept(self, request: SimulatedRequest) -> bool:
        """Tell whether a request that was answered was served well."""
        ttft_s, tpot_s = request.ttft_s, request.tpot_s
        most_s = self.ttft_s
        if most_s is None:
            most_s = CLASSES[request.latency_class].ttft_target_s
        if ttft_s is None or ttft_s > most_s:
            return False
        return self.tpot_s is None or tpot_s is None or tpot_s <= self.tpot_s


NO_TARGETS = Targets()


class Ledger:
    """Owns the results. `on_over` hears of each request that is over, answered or refused."""

    def __init__(self, targets: Targets = NO_TARGETS, bucket_s: float = 1.0) -> None:
        self._targets = targets
        self.bucket_s = bucket_s
        self.all = Served()
        self.by_class: defaultdict[str, Served] = defaultdict(Served)
        self.by_tenant: defaultdict[str, Served] = defaultdict(Served)
        self.refusals: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()  # of routes
        self.num_asked = 0
        self.num_over = 0
        self.first_at: float | None = None
        self.last_at = 0.0
        # Over time, in buckets: who came, who was placed, who was answered.
        self.came: Counter[int] = Counter()
        self.left_queue: Counter[int] = Counter()
        self.answered: Counter[int] = Counter()
        self.on_over: Callable[[SimulatedRequest], None] = lambda _: None

    @property
    def is_over(self) -> bool:
        """Nobody who asked still waits for an answer."""
        return self.num_over == self.num_asked

    @property
    def seconds(self) -> float:
        """From the first question to the last answer."""
        return self.last_at - self.first_at if self.first_at is not None else 0.0

    def asked(self, request: SimulatedRequest) -> None:
        """Note that a client asked."""
        self.num_asked += 1
        if self.first_at is None:
            self.first_at = request.arrived_at
        self.came[int(request.arrived_at / self.bucket_s)] += 1

    def placed(self, request: SimulatedRequest, reason: str) -> None:
        """Note that a request left the queue, and why its route was taken."""
        self.reasons[reason] += 1
        assert request.placed_at is not None, "it was placed"
        self.left_queue[int(request.placed_at / self.bucket_s)] += 1

    def refused(self, request: SimulatedRequest, at: float) -> None:
        """Note that a request got no answer, be it at once or after a while in the queue."""
        self.refusals[request.refusal or ""] += 1
        for group in self._groups_of(request):
            group.num_refused += 1
        self.left_queue[int(at / self.bucket_s)] += 1
        self._over(request)

    def ended(self, request: SimulatedRequest) -> None:
        """Note that a request was answered."""
        assert request.ended_at is not None, "it was answered"
        is_good = self._targets.are_kept(request)
        for group in self._groups_of(request):
            group.add(request, is_good=is_good)
        self.last_at = max(self.last_at, request.ended_at)
        self.answered[int(request.ended_at / self.bucket_s)] += 1
        self._over(request)

    def _over(self, request: SimulatedRequest) -> None:
        self.num_over += 1
        self.on_over(request)

    def _groups_of(self, request: SimulatedRequest) -> Iterable[Served]:
        yield self.all
        yield self.by_class[request.latency_class]
        if request.tenant:
            yield self.by_tenant[request.tenant]


@dataclass(frozen=True, slots=True)
class Figures:
    """What is said of a group of requests."""

    num_requests: int  # answered
    num_refused: int
    ttft_s: tuple[float, ...]  # at PERCENTS
    tpot_s: tuple[float, ...]
    queue_s: tuple[float, ...]
    requests_per_s: float
    tokens_per_s: float
    goodput_per_s: float  # requests within their targets

    @classmethod
    def of(cls, served: Served, seconds: float) -> "Figures":
        """Return those of what was served within some time."""
        per_s = 1 / seconds if seconds > 0 else 0.0
        return cls(
            num_requests=served.num_requests,
            num_refused=served.num_refused,
            ttft_s=percentiles(served.ttft_s),
            tpot_s=percentiles(served.tpot_s),
            queue_s=percentiles(served.queue_s),
            requests_per_s=served.num_requests * per_s,
            tokens_per_s=served.num_tokens * per_s,
            goodput_per_s=served.num_good * per_s,
        )


def percentiles(values: Sequence[float], percents: Sequence[float] = PERCENTS) -> tuple[float, ...]:
    """Return values below which so many in a hundred lie; none of none."""
    ordered = sorted(values)
    return tuple(percentile(ordered, each) for each in percents) if ordered else ()
