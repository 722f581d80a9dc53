"""A run over time: requests that run and wait, and tokens a second. Pure."""

import math
from dataclasses import dataclass

from slipstream.shared.measure.load.samples import LoadRun, Sample


@dataclass(frozen=True, slots=True)
class Moment:
    """A slice of a run."""

    at_s: float  # its middle
    num_waiting: int  # requests that were due and had no token yet, at its middle
    num_running: int
    tok_s: float


def timeline(run: LoadRun, num_slices: int) -> list[Moment]:
    """Return slices of the same length, from the run's begin to its window's end."""
    slice_s = run.end_s / num_slices
    num_tokens = [0] * num_slices
    for sample in run.samples:
        for at_s, num_new in sample.arrivals:
            if at_s < run.end_s:
                num_tokens[min(int(at_s / slice_s), num_slices - 1)] += num_new
    middles = [(idx + 0.5) * slice_s for idx in range(num_slices)]
    return [
        Moment(
            at_s,
            sum(_is_waiting(each, at_s) for each in run.samples),
            sum(_is_running(each, at_s) for each in run.samples),
            tokens / slice_s,
        )
        for at_s, tokens in zip(middles, num_tokens, strict=True)
    ]


def _is_waiting(sample: Sample, at_s: float) -> bool:
    ended_s = math.inf if sample.ended_s is None else sample.ended_s
    until_s = sample.arrivals[0][0] if sample.arrivals else ended_s
    return sample.due_s <= at_s < until_s


def _is_running(sample: Sample, at_s: float) -> bool:
    if not sample.arrivals:
        return False
    ended_s = math.inf if sample.ended_s is None else sample.ended_s
    return sample.arrivals[0][0] <= at_s < ended_s
