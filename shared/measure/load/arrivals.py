"""When requests come: at times that are known before, or whenever another one has ended. Pure."""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.shared.errors import ConfigurationError


@dataclass(frozen=True, slots=True, order=True)
class Arrival:
    """A request is due."""

    at_s: float  # since the run began
    number: int


class Arrivals(Protocol):
    """The arrivals of one run, which whoever drives it takes as time goes on."""

    def due(self, now_s: float) -> list[Arrival]:
        """Take what is due by now."""

    def ended(self, now_s: float) -> None:
        """Note that a request has ended."""

    @property
    def next_at_s(self) -> float | None:
        """When the next one is due; None while that depends on an ending, or if none will come."""


@dataclass
class ScheduledArrivals:
    """An open loop: whatever becomes of earlier requests, the next ones come."""

    times_s: Sequence[float]
    _num_taken: int = field(default=0, init=False)

    def due(self, now_s: float) -> list[Arrival]:
        """Take what is due by now."""
        found = []
        while (at_s := self.next_at_s) is not None and at_s <= now_s:
            found.append(Arrival(at_s, self._num_taken))
            self._num_taken += 1
        return found

    def ended(self, now_s: float) -> None:
        """Change nothing."""

    @property
    def next_at_s(self) -> float | None:
        """When the next one is due."""
        return self.times_s[self._num_taken] if self._num_taken < len(self.times_s) else None


@dataclass
class StreamArrivals:
    """
    A closed loop: so many requests at any moment, until the run's end or that of the requests.

    Streams begin one after another during `ramp_s`: all at once they would stay in step. Behind an
    answer a stream pauses, on average for `pause_s`. Without that its next request would
    come with the end of a step, which an engine in the same process would make use of, and nobody
    else can.
    """

    num_streams: int
    until_s: float
    ramp_s: float
    pause_s: float
    rng: random.Random
    max_num_requests: int | None = None
    _planned: list[Arrival] = field(default_factory=list, init=False)
    _num_planned: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        for idx in range(self.num_streams):
            self._plan(idx * self.ramp_s / self.num_streams)

    def due(self, now_s: float) -> list[Arrival]:
        """Take what is due by now."""
        found = []
        while self._planned and self._planned[0].at_s <= now_s:
            found.append(heapq.heappop(self._planned))
        return found

    def ended(self, now_s: float) -> None:
        """Let the stream's next request come after its pause."""
        self._plan(now_s + self.rng.uniform(0, 2 * self.pause_s))

    @property
    def next_at_s(self) -> float | None:
        """When the next one is due, if its stream is free."""
        return self._planned[0].at_s if self._planned else None

    def _plan(self, at_s: float) -> None:
        is_left = self.max_num_requests is None or self._num_planned < self.max_num_requests
        if at_s < self.until_s and is_left:
            heapq.heappush(self._planned, Arrival(at_s, self._num_planned))
            self._num_planned += 1


def poisson_times(rate: float, seconds: float, rng: random.Random) -> list[float]:
    """Return arrivals that know nothing of each other, `rate` a second on average."""
    times = []
    at_s = rng.expovariate(rate)
    while at_s < seconds:
        times.append(at_s)
        at_s += rng.expovariate(rate)
    return times


def burst_times(rate: float, seconds: float, size: int, rng: random.Random) -> list[float]:
    """Return bursts of `size` requests at one moment, at a rate that makes `rate` of them all."""
    return [at_s for at_s in poisson_times(rate / size, seconds, rng) for _ in range(size)]


def even_times(rate: float, seconds: float) -> list[float]:
    """Return arrivals with the same time between all of them."""
    return [number / rate for number in range(round(rate * seconds))]


def traced_times(times_s: Sequence[float], seconds: float, rate: float) -> list[float]:
    """
    Return a trace's first arrivals, as many as make `rate`; gaps keep their proportions.

    Raises ConfigurationError for a trace that is too short.
    """
    ordered = sorted(times_s)
    since_begin = [at_s - ordered[0] for at_s in ordered]
    num_wanted = max(1, round(rate * seconds))
    if num_wanted > len(since_begin):
        raise ConfigurationError(
            f"--rate {rate:g} for {seconds:g} s takes {num_wanted} requests and the trace has "
            f"{len(since_begin)}: take a lower rate, or a shorter run with --seconds"
        )
    # Up to the one that would come next: so the last gap counts, as every other one.
    end = since_begin[num_wanted] if num_wanted < len(since_begin) else since_begin[-1]
    if end <= 0:
        return [0.0] * num_wanted
    return [at_s * seconds / end for at_s in since_begin[:num_wanted]]
