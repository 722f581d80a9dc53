"""The figures of runs: rates, goodput, and percentiles of what clients waited for. Pure."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.shared.measure.load.samples import LoadRun, Sample
from slipstream.shared.messages.common import LatencyClassName


@dataclass(frozen=True, slots=True)
class Target:
    """What an answer must keep to be a good one."""

    ttft_ms: float = math.inf
    tpot_ms: float = math.inf

    def is_met(self, sample: Sample) -> bool:
        """Tell whether a request was served, and in time."""
        if not sample.is_served or sample.ttft_ms is None:
            return False
        return sample.ttft_ms <= self.ttft_ms and (sample.tpot_ms or 0.0) <= self.tpot_ms


@dataclass(frozen=True)
class Targets:
    """A target for each latency class, and one for all others."""

    default: Target
    by_class: Mapping[LatencyClassName, Target] = field(default_factory=dict)

    def is_met(self, sample: Sample) -> bool:
        """Tell whether a request met the target of its class."""
        name = sample.request.latency_class
        target = self.default if name is None else self.by_class.get(name, self.default)
        return target.is_met(sample)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Three of them."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Percentiles | None":
        """Return those of some values; None where there are none."""
        ordered = sorted(values)
        if not ordered:
            return None
        return cls(*(percentile(ordered, percent) for percent in (50, 95, 99)))


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What runs of one load come to, all of them together."""

    num_requests: int  # that were due in the windows
    num_failed: int  # of them: an error, or fewer tokens than asked for
    num_unfinished: int  # of them: not there when the run was given up
    throughput_tok_s: float  # output tokens that came in the windows
    throughputs_tok_s: Sequence[float]  # the same for each run
    goodput: float  # of those requests, a second, that met their targets
    attainment: float | None  # the part of the requests that met their targets
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    itl_ms: Percentiles | None  # between two frames of one stream
    queue_ms: Percentiles | None
    send_lag_ms: Percentiles | None  # how late the load generator was
    num_prompt_tokens: int
    num_cached_tokens: int
    client_cpu_share: float
    first_error: str | None


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted values, between two of them by their distance from it."""
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def every(_sample: Sample) -> bool:
    """Count all requests."""
    return True


def summarize(
    runs: Sequence[LoadRun], targets: Targets, is_counted: Callable[[Sample], bool] = every
) -> Summary:
    """Return the figures of all requests, or of those that count."""
    counted = [(run, each) for run in runs for each in run.samples if is_counted(each)]
    due = [sample for run, sample in counted if run.holds(sample.due_s)]
    good = [sample for sample in due if targets.is_met(sample)]
    rates = [_num_tokens(run, is_counted) / run.seconds for run in runs]
    seconds = sum(run.seconds for run in runs)
    return Summary(
        num_requests=len(due),
        num_failed=sum(each.ended_s is not None and not each.is_served for each in due),
        num_unfinished=sum(each.ended_s is None for each in due),
        throughput_tok_s=sum(rate * run.seconds for rate, run in zip(rates, runs, strict=True))
        / seconds,
        throughputs_tok_s=rates,
        goodput=len(good) / seconds,
        attainment=len(good) / len(due) if due else None,
        ttft_ms=Percentiles.of(_known(each.ttft_ms for each in due)),
        tpot_ms=Percentiles.of(_known(each.tpot_ms for each in due)),
        itl_ms=Percentiles.of(gap for run, sample in counted for gap in _gaps_ms(run, sample)),
        queue_ms=Percentiles.of(_known(each.queue_ms for each in due)),
        send_lag_ms=Percentiles.of((each.sent_s - each.due_s) * 1000 for each in due),
        num_prompt_tokens=sum(len(each.request.token_ids) for each in due),
        num_cached_tokens=sum(each.num_cached_tokens for each in due),
        client_cpu_share=max(run.client_cpu_share for run in runs),
        first_error=next((each.error for each in due if each.error is not None), None),
    )


def _num_tokens(run: LoadRun, is_counted: Callable[[Sample], bool]) -> int:
    return sum(
        num_tokens
        for sample in run.samples
        if is_counted(sample)
        for at_s, num_tokens in sample.arrivals
        if run.holds(at_s)
    )


def _gaps_ms(run: LoadRun, sample: Sample) -> list[float]:
    return [
        (after - before) * 1000
        for (before, _), (after, _) in itertools.pairwise(sample.arrivals)
        if run.holds(before) and run.holds(after)
    ]


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
