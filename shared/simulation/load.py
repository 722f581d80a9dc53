"""Who asks, when, and for how much."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from slipstream.shared.ids import RequestId
from slipstream.shared.measure.load.traces import Lengths
from slipstream.shared.messages.common import LatencyClassName, Route
from slipstream.shared.scheduling.classes import DEFAULT_CLASS
from slipstream.shared.simulation.requests import SimulatedRequest

Name = TypeVar("Name", bound=str)


@dataclass(frozen=True, slots=True)
class LengthRange:
    """Lengths between two bounds, each as likely as any other."""

    prompt: tuple[int, int]
    output: tuple[int, int]

    def draw(self, rng: random.Random) -> Lengths:
        """Return the lengths of one more request."""
        return Lengths(rng.randint(*self.prompt), rng.randint(*self.output))

    def mean_context(self) -> float:
        """Return how many tokens a stream attends to, on average."""
        return sum(self.prompt) / 2 + sum(self.output) / 4


@dataclass(frozen=True, slots=True)
class LengthSamples:
    """Lengths that were seen, any of them again."""

    samples: Sequence[Lengths]

    def draw(self, rng: random.Random) -> Lengths:
        """Return the lengths of one more request."""
        return rng.choice(self.samples)

    def mean_context(self) -> float:
        """Return how many tokens a stream attends to, on average."""
        total = sum(each.num_prompt_tokens + each.num_output_tokens / 2 for each in self.samples)
        return total / len(self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What requests are like."""

    lengths: LengthRange | LengthSamples
    classes: Mapping[LatencyClassName, float] = field(default_factory=lambda: {DEFAULT_CLASS: 1.0})
    tenants: Mapping[str, float] = field(default_factory=dict)  # by their shares
    route: Route = "auto"


class RequestMaker:
    """Makes requests of a mix, the same ones with the same seed."""

    def __init__(self, mix: Mix, seed: int) -> None:
        self._mix = mix
        self._rng = random.Random(seed)  # noqa: S311 - a workload is no secret
        self._numbers = itertools.count()
        self._classes = _Shares(mix.classes)
        self._tenants = _Shares(mix.tenants)

    def make(self, arrived_at: float, lengths: Lengths | None = None) -> SimulatedRequest:
        """Return one more request; its lengths are the mix's unless they are given."""
        rng, mix = self._rng, self._mix
        lengths = lengths or mix.lengths.draw(rng)
        return SimulatedRequest(
            request_id=RequestId(str(next(self._numbers))),
            arrived_at=arrived_at,
            num_prompt_tokens=lengths.num_prompt_tokens,
            num_output_tokens=lengths.num_output_tokens,
            max_tokens=lengths.num_output_tokens,
            tenant=self._tenants.draw(rng) or "",
            latency_class=self._classes.draw(rng) or DEFAULT_CLASS,
            route=mix.route,
        )


class _Shares(Generic[Name]):
    """Names by how often they come."""

    def __init__(self, shares: Mapping[Name, float]) -> None:
        self._names = list(shares)
        self._bounds = list(itertools.accumulate(shares.values()))

    def draw(self, rng: random.Random) -> Name | None:
        """Return one of them; None if there is none."""
        if len(self._names) <= 1:
            return self._names[0] if self._names else None
        return rng.choices(self._names, cum_weights=self._bounds)[0]


@dataclass(frozen=True, slots=True)
class Bursts:
    """In each period the rate is higher for a while, and lower else: the mean stays."""

    factor: float = 1.0  # of the mean rate; 1: no bursts
    period_s: float = 60.0
    burst_s: float = 5.0

    def rate(self, mean_rate: float, time_s: float) -> float:
        """Return the rate at a time."""
        part = self.burst_s / self.period_s
        if time_s % self.period_s < self.burst_s:
            return mean_rate * self.factor
        return mean_rate * (1 - part * self.factor) / (1 - part)


NO_BURSTS = Bursts()


def poisson(
    maker: RequestMaker, rate: float, num_requests: int, seed: int, bursts: Bursts = NO_BURSTS
) -> Iterator[SimulatedRequest]:
    """Yield requests that nobody coordinates, so many a second on average."""
    rng = random.Random(seed)  # noqa: S311 - repeatable, no secret
    highest = rate * max(1.0, bursts.factor)
    now = 0.0
    for _ in range(num_requests):
        now += rng.expovariate(highest)
        # Thinned: at a lower rate only some of those that come at the highest.
        while bursts.factor > 1 and rng.random() * highest > bursts.rate(rate, now):
            now += rng.expovariate(highest)
        yield maker.make(now)


def replayed(
    maker: RequestMaker,
    trace: Sequence[tuple[float, Lengths]],
    num_requests: int,
    rate: float | None = None,
) -> Iterator[SimulatedRequest]:
    """Yield a trace's requests, again and again; with a rate its time is stretched to fit it."""
    first_at, last_at = trace[0][0], trace[-1][0]
    # Behind the last comes as long a pause as any on average.
    span_s = (last_at - first_at) * len(trace) / max(1, len(trace) - 1)
    factor = 1.0 if rate is None or span_s <= 0 else len(trace) / (rate * span_s)
    for number in range(num_requests):
        lap, idx = divmod(number, len(trace))
        at, lengths = trace[idx]
        yield maker.make((at - first_at + lap * span_s) * factor, lengths)
